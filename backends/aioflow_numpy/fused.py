"""The fused ops on the CPU: chains and epilogues are run block by block."""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.graph.shapes import num_elements
from aioflow.kernels.fused import PRODUCTS, chain_of, epilogue_of, naming, product_binding
from aioflow.kernels.registry import KERNELS, Binding, KernelBody, binder
from aioflow.memory.values import Array
from aioflow_numpy.fused_blocks import BlockChain


@binder("_ElementwiseChain", device="CPU", fresh=True, takes_out=True)
def elementwise_chain(binding: Binding) -> KernelBody:
    """Bind a chain: run small arrays through the members one after another, as in a strand, and others in blocks."""
    blocks = BlockChain(chain_of(binding), binding.constants)
    chain = blocks.chain
    small = blocks.least // max(t.size for t in binding.input_dtypes)
    counts = [num_elements(dims) for dims in binding.input_dims]
    if any(count is not None and count >= small for count in counts):
        return blocks.run
    unknown = [i for i, count in enumerate(counts) if count is None]
    if len(unknown) == 1:
        (only,) = unknown

        def one(inputs: Sequence[Array], out: Array | None = None) -> Array:
            return chain(inputs) if inputs[only].size < small else blocks.run(inputs, out)

        return one

    def body(inputs: Sequence[Array], out: Array | None = None) -> Array:
        for i in unknown:
            if inputs[i].size >= small:
                return blocks.run(inputs, out)
        return chain(inputs)

    return body


@binder("_FusedMatMul", device="CPU", fresh=True)
@binder("_FusedConv2D", device="CPU", fresh=True)
@binder("_FusedDepthwiseConv2dNative", device="CPU", fresh=True)
def fused_product(binding: Binding) -> KernelBody:
    """Bind a product with an epilogue, which runs in the product's own buffer."""
    alone = product_binding(binding, PRODUCTS[binding.op_type])
    product = naming(binding, KERNELS.get(alone.op_type, binding.backend.device_type, alone.attrs).bind(alone))
    epilogue = epilogue_of(binding)
    if epilogue is None:
        return lambda left, right, args: product(left, right)
    # The first input of the epilogue is the product, which is never constant.
    blocks = BlockChain(epilogue, (None, *binding.constants[2:]))

    def body(left: Array, right: Array, args: Sequence[Array]) -> Array:
        made = product(left, right)
        inputs = (made, *args)
        return blocks.run(inputs, made) if made.nbytes >= blocks.least else blocks.chain(inputs)

    return body
