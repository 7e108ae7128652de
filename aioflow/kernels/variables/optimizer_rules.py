"""The update formulas of the optimizers, each as a few passes over arrays of one shape.

A rule receives the present values `v` of its variables, the arrays `o` for their new values, the gradient `g`, scratch
arrays `s` and its prepared scalars `h`. `o[i]` may be `v[i]`, so `v[i]` is never read after `o[i]` is written. Values
that depend only on scalars are prepared. The passes only hand scalars to functions of `xp`, which may merely record the
calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from aioflow.errors import InvalidArgumentError
from aioflow.memory.values import Array, Namespace

Arrays: TypeAlias = Sequence[Array]
Scalars: TypeAlias = Mapping[str, Any]  # scalar inputs, attributes and values derived from them, by name
Update: TypeAlias = Callable[[Namespace, Arrays, Arrays, Array, Arrays, Scalars], None]


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """The update rule of one optimizer.

    Attributes:
        update: The function that applies the passes.
        scratch: The number of scratch arrays that the passes need.
        prepare: Checks `h`, the op's scalar inputs and attributes by name, and returns it with derived values added.
        looks: Whether `prepare` or the passes compare values of scalars, which waits for the device that holds them.
        of_rows: Whether an op exists that applies the rule to some rows.
    """

    update: Update
    scratch: int
    prepare: Callable[[Namespace, Scalars], dict[str, Any]] | None = None
    looks: bool = False
    of_rows: bool = True


def _gradient_descent(xp: Namespace, v: Arrays, o: Arrays, g: Array, s: Arrays, h: Scalars) -> None:
    """Apply var -= α·g."""
    xp.multiply(g, h["alpha"], s[0])
    xp.subtract(v[0], s[0], o[0])


def _momentum(xp: Namespace, v: Arrays, o: Arrays, g: Array, s: Arrays, h: Scalars) -> None:
    """Apply accum = μ·accum + g; var -= lr·accum, or with Nesterov lr·(g + μ·accum)."""
    lr, momentum = h["lr"], h["momentum"]
    xp.multiply(v[1], momentum, o[1])
    xp.add(o[1], g, o[1])
    if h["use_nesterov"]:
        xp.multiply(o[1], momentum, s[0])
        xp.add(s[0], g, s[0])
        xp.multiply(s[0], lr, s[0])
    else:
        xp.multiply(o[1], lr, s[0])
    xp.subtract(v[0], s[0], o[0])


def _accumulate_square(xp: Namespace, v: Array, o: Array, g: Array, s: Array, wanted: bool = True) -> None:
    if wanted:
        xp.multiply(g, g, s)
        xp.add(v, s, o)
    # The slot keeps its value, which a new array does not hold yet.
    elif o is not v:
        o[...] = v


def _adagrad(xp: Namespace, v: Arrays, o: Arrays, g: Array, s: Arrays, h: Scalars) -> None:
    """Apply accum += g²; var -= lr·g / (√accum + ε)."""
    _accumulate_square(xp, v[1], o[1], g, s[0], h["update_slots"])
    xp.sqrt(o[1], s[0])
    if h.get("epsilon") is not None:
        xp.add(s[0], h["epsilon"], s[0])
    xp.divide(g, s[0], s[0])
    xp.multiply(s[0], h["lr"], s[0])
    xp.subtract(v[0], s[0], o[0])


def _adagrad_da(xp: Namespace, v: Arrays, o: Arrays, g: Array, s: Arrays, h: Scalars) -> None:
    """Apply G += g; Q += g²; var = -lr·sign(G)·max(|G| - l1·step, 0) / (l2·step·lr + √Q)."""
    xp.add(v[1], g, o[1])
    _accumulate_square(xp, v[2], o[2], g, s[0])
    s[0][...] = o[1]
    _shrink(xp, s[0], s[1], h["threshold"])
    xp.multiply(s[0], h["negative_lr"], s[0])
    xp.sqrt(o[2], s[1])
    xp.add(s[1], h["decay"], s[1])
    xp.divide(s[0], s[1], o[0])


def _adagrad_da_scalars(xp: Namespace, h: Scalars) -> dict[str, Any]:
    step = h["global_step"].astype(h["lr"].dtype)
    return {**h, "threshold": h["l1"] * step, "decay": h["l2"] * step * h["lr"], "negative_lr": -h["lr"]}


def _adadelta(xp: Namespace, v: Arrays, o: Arrays, g: Array, s: Arrays, h: Scalars) -> None:
    """Apply Adadelta.

    accum = ρ·accum + (1-ρ)·g²; u = g·√(updates + ε)/√(accum + ε); var -= lr·u; updates = ρ·updates + (1-ρ)·u²
    """
    rho, rest, epsilon = h["rho"], h["rest"], h["epsilon"]
    xp.multiply(g, g, s[0])
    xp.multiply(s[0], rest, s[0])
    xp.multiply(v[1], rho, o[1])
    xp.add(o[1], s[0], o[1])
    xp.add(o[1], epsilon, s[1])
    xp.add(v[2], epsilon, s[0])
    # √(a / b) saves one root against √a / √b.
    xp.divide(s[0], s[1], s[0])
    xp.sqrt(s[0], s[0])
    xp.multiply(s[0], g, s[0])
    xp.multiply(s[0], h["lr"], s[1])
    xp.subtract(v[0], s[1], o[0])
    xp.multiply(s[0], s[0], s[0])
    xp.multiply(s[0], rest, s[0])
    xp.multiply(v[2], rho, o[2])
    xp.add(o[2], s[0], o[2])


def _moments(xp: Namespace, v: Arrays, o: Arrays, g: Array, s: Array, h: Scalars) -> None:
    """Apply m += (1-β1)·(g - m); v += (1-β2)·(g² - v)."""
    xp.subtract(g, v[1], s)
    xp.multiply(s, h["rest1"], s)
    xp.add(v[1], s, o[1])
    xp.multiply(g, g, s)
    xp.subtract(s, v[2], s)
    xp.multiply(s, h["rest2"], s)
    xp.add(v[2], s, o[2])


def _adam(xp: Namespace, v: Arrays, o: Arrays, g: Array, s: Arrays, h: Scalars) -> None:
    """Apply var -= α·m / (√v + ε), with α = lr·√(1-β2ᵗ)/(1-β1ᵗ); Nesterov uses (1-β1)·g + β1·m for m."""
    _moments(xp, v, o, g, s[0], h)
    xp.sqrt(o[2], s[0])
    xp.add(s[0], h["epsilon"], s[0])
    if h["use_nesterov"]:
        xp.divide(g, s[0], s[1])
        xp.multiply(s[1], h["alpha_rest1"], s[1])
        xp.divide(o[1], s[0], s[0])
        xp.multiply(s[0], h["alpha_beta1"], s[0])
        xp.add(s[0], s[1], s[0])
    else:
        xp.divide(o[1], s[0], s[0])
        xp.multiply(s[0], h["alpha"], s[0])
    xp.subtract(v[0], s[0], o[0])


def _amsgrad(xp: Namespace, v: Arrays, o: Arrays, g: Array, s: Arrays, h: Scalars) -> None:
    """Apply Adam with the largest v so far instead of v."""
    _moments(xp, v, o, g, s[0], h)
    xp.maximum(v[3], o[2], out=o[3])
    xp.sqrt(o[3], s[0])
    xp.add(s[0], h["epsilon"], s[0])
    xp.divide(o[1], s[0], s[0])
    xp.multiply(s[0], h["alpha"], s[0])
    xp.subtract(v[0], s[0], o[0])


def _adam_scalars(xp: Namespace, h: Scalars) -> dict[str, Any]:
    one = _one(h["lr"])
    alpha = h["lr"] * xp.sqrt(one - h["beta2_power"]) / (one - h["beta1_power"])
    found = {**h, "alpha": alpha, "rest1": one - h["beta1"], "rest2": one - h["beta2"]}
    if h.get("use_nesterov"):
        found |= {"alpha_rest1": found["rest1"] * alpha, "alpha_beta1": h["beta1"] * alpha}
    return found


def _adamax(xp: Namespace, v: Arrays, o: Arrays, g: Array, s: Arrays, h: Scalars) -> None:
    """Apply m += (1-β1)·(g - m); v = max(β2·v, |g|); var -= lr/(1-β1ᵗ) · m / (v + ε)."""
    xp.subtract(g, v[1], s[0])
    xp.multiply(s[0], h["rest1"], s[0])
    xp.add(v[1], s[0], o[1])
    xp.multiply(v[2], h["beta2"], o[2])
    xp.maximum(o[2], xp.absolute(g), out=o[2])
    xp.add(o[2], h["epsilon"], s[0])
    xp.divide(o[1], s[0], s[0])
    xp.multiply(s[0], h["alpha"], s[0])
    xp.subtract(v[0], s[0], o[0])


def _adamax_scalars(xp: Namespace, h: Scalars) -> dict[str, Any]:
    one = _one(h["lr"])
    return {**h, "alpha": h["lr"] / (one - h["beta1_power"]), "rest1": one - h["beta1"]}


def _rms_prop(xp: Namespace, v: Arrays, o: Arrays, g: Array, s: Arrays, h: Scalars) -> None:
    """Apply ms += (1-ρ)·(g² - ms); mom = μ·mom + lr·g/√(ms + ε); var -= mom."""
    _mean_square(xp, v[1], o[1], g, s[0], h)
    xp.add(o[1], h["epsilon"], s[0])
    _step_by_root(xp, v[0], o[0], v[2], o[2], g, s[0], h)


def _centered_rms_prop(xp: Namespace, v: Arrays, o: Arrays, g: Array, s: Arrays, h: Scalars) -> None:
    """Apply RMSProp with ms - mg² instead of ms, where mg += (1-ρ)·(g - mg)."""
    xp.subtract(g, v[1], s[0])
    xp.multiply(s[0], h["rest"], s[0])
    xp.add(v[1], s[0], o[1])
    _mean_square(xp, v[2], o[2], g, s[0], h)
    # ms - mg² estimates the variance of the gradient.
    xp.multiply(o[1], o[1], s[0])
    xp.subtract(o[2], s[0], s[0])
    xp.add(s[0], h["epsilon"], s[0])
    _step_by_root(xp, v[0], o[0], v[3], o[3], g, s[0], h)


def _mean_square(xp: Namespace, v: Array, o: Array, g: Array, s: Array, h: Scalars) -> None:
    xp.multiply(g, g, s)
    xp.subtract(s, v, s)
    xp.multiply(s, h["rest"], s)
    xp.add(v, s, o)


def _step_by_root(
    xp: Namespace, var: Array, new_var: Array, mom: Array, new_mom: Array, g: Array, s: Array, h: Scalars
) -> None:
    """Apply mom = μ·mom + lr·g/√s; var -= mom."""
    xp.sqrt(s, s)
    xp.divide(g, s, s)
    xp.multiply(s, h["lr"], s)
    xp.multiply(mom, h["momentum"], new_mom)
    xp.add(new_mom, s, new_mom)
    xp.subtract(var, new_mom, new_var)


def _rho_scalars(xp: Namespace, h: Scalars) -> dict[str, Any]:
    return {**h, "rest": _one(h["lr"]) - h["rho"]}


def _ftrl(xp: Namespace, v: Arrays, o: Arrays, g: Array, s: Arrays, h: Scalars) -> None:
    """Apply FTRL-proximal (McMahan et al. 2013).

    accum += g²; linear += g - (accum⁻ᵖ - accum₀⁻ᵖ)/lr·var;
    var = (clip(linear, -l1, l1) - linear) / (accum⁻ᵖ/lr + 2·l2)

    Here p is lr_power, and accum₀ the value of accum before the gradient. With shrinkage, linear uses
    g + 2·shrinkage·var for g. With multiply_linear_by_lr, linear and the quotient for var are scaled by lr, so that no
    term is divided by lr.
    """
    lr, scaled = h["lr"], h["multiply_linear_by_lr"]
    # accum⁻ᵖ before and after this gradient.
    old_power, new_power = s[0], s[1]
    _power(xp, v[1], old_power, h["lr_power"])
    xp.multiply(g, g, new_power)
    xp.add(v[1], new_power, o[1])
    _power(xp, o[1], new_power, h["lr_power"])
    xp.subtract(new_power, old_power, old_power)
    if not scaled:
        xp.divide(old_power, lr, old_power)
    xp.multiply(old_power, v[0], old_power)
    # `h["shrinkage"]` is twice the attribute of the op.
    xp.multiply(v[0], h["shrinkage"], s[2])
    xp.add(s[2], g, s[2])
    if scaled:
        xp.multiply(s[2], lr, s[2])
    xp.subtract(s[2], old_power, s[2])
    xp.add(v[2], s[2], o[2])
    l1, l2 = h["l1"], h["l2"] + h["l2"]
    if scaled:
        l1, l2 = l1 * lr, l2 * lr
    else:
        xp.divide(new_power, lr, new_power)
    xp.add(new_power, l2, new_power)
    xp.maximum(o[2], -l1, out=s[2])
    xp.minimum(s[2], l1, out=s[2])
    xp.subtract(s[2], o[2], s[2])
    xp.divide(s[2], new_power, o[0])


def _power(xp: Namespace, base: Array, out: Array, lr_power: Array) -> None:
    """Write base⁻ᵖ to `out`, where p is `lr_power`."""
    # The default lr_power is -0.5, and a square root takes a fraction of the time of a power.
    if lr_power == -0.5:
        xp.sqrt(base, out)
    else:
        xp.power(base, -lr_power, out)


def _ftrl_scalars(xp: Namespace, h: Scalars) -> dict[str, Any]:
    _require("lr", h["lr"], "> 0" if not h["multiply_linear_by_lr"] else ">= 0")
    for name in ("l1", "l2"):
        _require(name, h[name], ">= 0")
    _require("lr_power", h["lr_power"], "<= 0")
    shrinkage = h.get("l2_shrinkage")
    if shrinkage is not None:
        _require("l2_shrinkage", shrinkage, ">= 0")
    # A zero of the dtype and on the device of the scalars.
    zero = h["lr"] - h["lr"]
    return {**h, "shrinkage": zero if shrinkage is None else shrinkage + shrinkage}


def _require(name: str, value: Array, condition: str) -> None:
    fits = value > 0 if condition == "> 0" else value >= 0 if condition == ">= 0" else value <= 0
    if not fits:
        raise InvalidArgumentError(f"{name} is out of range", expected=condition, actual=float(value))


def _proximal_gradient_descent(xp: Namespace, v: Arrays, o: Arrays, g: Array, s: Arrays, h: Scalars) -> None:
    """Apply FOBOS: p = var - α·g; var = sign(p)·max(|p| - α·l1, 0) / (1 + α·l2)."""
    xp.multiply(g, h["alpha"], s[0])
    xp.subtract(v[0], s[0], s[0])
    _shrink(xp, s[0], s[1], h["alpha_l1"])
    xp.divide(s[0], h["divisor"], o[0])


def _proximal_scalars(xp: Namespace, h: Scalars) -> dict[str, Any]:
    alpha = h["alpha"]
    return {**h, "alpha_l1": alpha * h["l1"], "divisor": _one(alpha) + alpha * h["l2"]}


def _proximal_adagrad(xp: Namespace, v: Arrays, o: Arrays, g: Array, s: Arrays, h: Scalars) -> None:
    """Apply FOBOS with α = lr/√accum for each element, after accum += g²."""
    _accumulate_square(xp, v[1], o[1], g, s[0])
    rate = s[2]
    xp.sqrt(o[1], rate)
    xp.divide(h["lr"], rate, rate)
    xp.multiply(g, rate, s[0])
    xp.subtract(v[0], s[0], s[0])
    xp.multiply(rate, h["l1"], s[1])
    _shrink(xp, s[0], s[1], s[1])
    xp.multiply(rate, h["l2"], rate)
    xp.add(rate, h["one"], rate)
    xp.divide(s[0], rate, o[0])


def _proximal_adagrad_scalars(xp: Namespace, h: Scalars) -> dict[str, Any]:
    return {**h, "one": _one(h["lr"])}


def _shrink(xp: Namespace, p: Array, s: Array, threshold: Array) -> None:
    """Set p = sign(p)·max(|p| - threshold, 0). `s` is scratch, and may be the threshold."""
    # p - sign(p)·min(|p|, threshold) is the same, in one array of scratch.
    bound = threshold if threshold is s else xp.add(xp.zeros_like(p), threshold, s)
    clipped = xp.minimum(xp.absolute(p), bound, out=s)
    xp.multiply(clipped, xp.sign(p), s)
    xp.subtract(p, s, p)


def _one(like: Array) -> Array:
    """Return 1 in the dtype of a scalar."""
    found: Array = like.dtype.type(1)
    return found


RULES: Final[Mapping[str, UpdateRule]] = {
    "GradientDescent": UpdateRule(_gradient_descent, 1, of_rows=False),
    "ProximalGradientDescent": UpdateRule(_proximal_gradient_descent, 2, _proximal_scalars),
    "Momentum": UpdateRule(_momentum, 1),
    "Adagrad": UpdateRule(_adagrad, 1),
    "AdagradV2": UpdateRule(_adagrad, 1),
    "ProximalAdagrad": UpdateRule(_proximal_adagrad, 3, _proximal_adagrad_scalars),
    "AdagradDA": UpdateRule(_adagrad_da, 2, _adagrad_da_scalars),
    "Adadelta": UpdateRule(_adadelta, 2, _rho_scalars),
    "Adam": UpdateRule(_adam, 2, _adam_scalars, of_rows=False),
    "AdamWithAmsgrad": UpdateRule(_amsgrad, 1, _adam_scalars, of_rows=False),
    "AdaMax": UpdateRule(_adamax, 1, _adamax_scalars, of_rows=False),
    "RMSProp": UpdateRule(_rms_prop, 1, _rho_scalars),
    "CenteredRMSProp": UpdateRule(_centered_rms_prop, 1, _rho_scalars),
    "Ftrl": UpdateRule(_ftrl, 3, _ftrl_scalars, looks=True),
    "FtrlV2": UpdateRule(_ftrl, 3, _ftrl_scalars, looks=True),
}
