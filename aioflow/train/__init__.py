"""Training: optimizers, learning rates, moving averages, the global step. The names are TensorFlow 1's `tf.train`."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.later import homes as _homes
from aioflow.loading.later import load_later as _load_later
from aioflow.train import experimental as experimental

# ruff: noqa: F403, F405, TC004
if _TYPE_CHECKING:
    from aioflow.net.cluster_spec import ClusterSpec as ClusterSpec
    from aioflow.net.server import Server as Server
    from aioflow.observe.event_log import summary_iterator as summary_iterator
    from aioflow.protos.classes import SaverDef as SaverDef
    from aioflow.train.adagrad import AdadeltaOptimizer as AdadeltaOptimizer
    from aioflow.train.adagrad import AdagradDAOptimizer as AdagradDAOptimizer
    from aioflow.train.adagrad import AdagradOptimizer as AdagradOptimizer
    from aioflow.train.adagrad import ProximalAdagradOptimizer as ProximalAdagradOptimizer
    from aioflow.train.background_saver import BackgroundSaver as BackgroundSaver
    from aioflow.train.batching import batch as batch
    from aioflow.train.batching import batch_join as batch_join
    from aioflow.train.batching import maybe_batch as maybe_batch
    from aioflow.train.batching import maybe_batch_join as maybe_batch_join
    from aioflow.train.batching import maybe_shuffle_batch as maybe_shuffle_batch
    from aioflow.train.batching import maybe_shuffle_batch_join as maybe_shuffle_batch_join
    from aioflow.train.batching import shuffle_batch as shuffle_batch
    from aioflow.train.batching import shuffle_batch_join as shuffle_batch_join
    from aioflow.train.checkpoint_state import CheckpointReader as CheckpointReader
    from aioflow.train.checkpoint_state import CheckpointState as CheckpointState
    from aioflow.train.checkpoint_state import NewCheckpointReader as NewCheckpointReader
    from aioflow.train.checkpoint_state import checkpoint_exists as checkpoint_exists
    from aioflow.train.checkpoint_state import get_checkpoint_mtimes as get_checkpoint_mtimes
    from aioflow.train.checkpoint_state import get_checkpoint_state as get_checkpoint_state
    from aioflow.train.checkpoint_state import latest_checkpoint as latest_checkpoint
    from aioflow.train.checkpoint_state import list_variables as list_variables
    from aioflow.train.checkpoint_state import load_checkpoint as load_checkpoint
    from aioflow.train.checkpoint_state import load_variable as load_variable
    from aioflow.train.checkpoint_state import remove_checkpoint as remove_checkpoint
    from aioflow.train.checkpoint_state import update_checkpoint_state as update_checkpoint_state
    from aioflow.train.coordinator import Coordinator as Coordinator
    from aioflow.train.decay import cosine_decay as cosine_decay
    from aioflow.train.decay import cosine_decay_restarts as cosine_decay_restarts
    from aioflow.train.decay import exponential_decay as exponential_decay
    from aioflow.train.decay import inverse_time_decay as inverse_time_decay
    from aioflow.train.decay import linear_cosine_decay as linear_cosine_decay
    from aioflow.train.decay import natural_exp_decay as natural_exp_decay
    from aioflow.train.decay import noisy_linear_cosine_decay as noisy_linear_cosine_decay
    from aioflow.train.decay import piecewise_constant as piecewise_constant
    from aioflow.train.decay import piecewise_constant_decay as piecewise_constant_decay
    from aioflow.train.decay import polynomial_decay as polynomial_decay
    from aioflow.train.device_setter import GreedyLoadBalancingStrategy as GreedyLoadBalancingStrategy
    from aioflow.train.device_setter import RandomStrategy as RandomStrategy
    from aioflow.train.device_setter import byte_size_load_fn as byte_size_load_fn
    from aioflow.train.device_setter import replica_device_setter as replica_device_setter
    from aioflow.train.example import BytesList as BytesList
    from aioflow.train.example import Example as Example
    from aioflow.train.example import Feature as Feature
    from aioflow.train.example import FeatureList as FeatureList
    from aioflow.train.example import FeatureLists as FeatureLists
    from aioflow.train.example import Features as Features
    from aioflow.train.example import FloatList as FloatList
    from aioflow.train.example import Int64List as Int64List
    from aioflow.train.example import SequenceExample as SequenceExample
    from aioflow.train.gradient_accumulation import GradientAccumulationOptimizer as GradientAccumulationOptimizer
    from aioflow.train.graph_io import read_graph as read_graph
    from aioflow.train.graph_io import write_graph as write_graph
    from aioflow.train.initial_checkpoint import init_from_checkpoint as init_from_checkpoint
    from aioflow.train.input import input_producer as input_producer
    from aioflow.train.input import limit_epochs as limit_epochs
    from aioflow.train.input import match_filenames_once as match_filenames_once
    from aioflow.train.input import range_input_producer as range_input_producer
    from aioflow.train.input import slice_input_producer as slice_input_producer
    from aioflow.train.input import string_input_producer as string_input_producer
    from aioflow.train.meta_graph import export_meta_graph as export_meta_graph
    from aioflow.train.meta_graph_import import import_meta_graph as import_meta_graph
    from aioflow.train.monitored import *
    from aioflow.train.moving_averages import ExponentialMovingAverage as ExponentialMovingAverage
    from aioflow.train.optimizer import Optimizer as Optimizer
    from aioflow.train.optimizers import AdamOptimizer as AdamOptimizer
    from aioflow.train.optimizers import FtrlOptimizer as FtrlOptimizer
    from aioflow.train.optimizers import GradientDescentOptimizer as GradientDescentOptimizer
    from aioflow.train.optimizers import MomentumOptimizer as MomentumOptimizer
    from aioflow.train.optimizers import ProximalGradientDescentOptimizer as ProximalGradientDescentOptimizer
    from aioflow.train.optimizers import RMSPropOptimizer as RMSPropOptimizer
    from aioflow.train.queue_runner import QueueRunner as QueueRunner
    from aioflow.train.queue_runner import add_queue_runner as add_queue_runner
    from aioflow.train.queue_runner import start_queue_runners as start_queue_runners
    from aioflow.train.saver import PendingCheckpoint as PendingCheckpoint
    from aioflow.train.saver import Saver as Saver
    from aioflow.train.step import assert_global_step as assert_global_step
    from aioflow.train.step import create_global_step as create_global_step
    from aioflow.train.step import get_global_step as get_global_step
    from aioflow.train.step import get_or_create_global_step as get_or_create_global_step
    from aioflow.train.step import global_step as global_step
    from aioflow.train.sync_replicas import SyncReplicasOptimizer as SyncReplicasOptimizer

__all__ = [
    "AdadeltaOptimizer",
    "AdagradDAOptimizer",
    "AdagradOptimizer",
    "AdamOptimizer",
    "BackgroundSaver",
    "BytesList",
    "CheckpointReader",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "CheckpointState",
    "CheckpointedInput",
    "ChiefSessionCreator",
    "ClusterSpec",
    "Coordinator",
    "Example",
    "ExponentialMovingAverage",
    "Feature",
    "FeatureList",
    "FeatureLists",
    "Features",
    "FeedFnHook",
    "FinalOpsHook",
    "FloatList",
    "FtrlOptimizer",
    "GlobalStepWaiterHook",
    "GradientAccumulationOptimizer",
    "GradientDescentOptimizer",
    "GreedyLoadBalancingStrategy",
    "InputSource",
    "Int64List",
    "LoggingTensorHook",
    "MomentumOptimizer",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "NewCheckpointReader",
    "Optimizer",
    "PendingCheckpoint",
    "ProfilerHook",
    "ProximalAdagradOptimizer",
    "ProximalGradientDescentOptimizer",
    "QueueRunner",
    "RMSPropOptimizer",
    "RandomStrategy",
    "Saver",
    "SaverDef",
    "Scaffold",
    "SecondOrStepTimer",
    "SeekableFeeds",
    "SequenceExample",
    "Server",
    "SessionCreator",
    "SessionManager",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "SingularMonitoredSession",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "Supervisor",
    "SyncReplicasOptimizer",
    "WorkerSessionCreator",
    "add_queue_runner",
    "assert_global_step",
    "batch",
    "batch_join",
    "byte_size_load_fn",
    "checkpoint_exists",
    "cosine_decay",
    "cosine_decay_restarts",
    "create_global_step",
    "exponential_decay",
    "export_meta_graph",
    "get_checkpoint_mtimes",
    "get_checkpoint_state",
    "get_global_step",
    "get_or_create_global_step",
    "global_step",
    "import_meta_graph",
    "init_from_checkpoint",
    "input_producer",
    "inverse_time_decay",
    "latest_checkpoint",
    "limit_epochs",
    "linear_cosine_decay",
    "list_variables",
    "load_checkpoint",
    "load_variable",
    "match_filenames_once",
    "maybe_batch",
    "maybe_batch_join",
    "maybe_shuffle_batch",
    "maybe_shuffle_batch_join",
    "natural_exp_decay",
    "noisy_linear_cosine_decay",
    "piecewise_constant",
    "piecewise_constant_decay",
    "polynomial_decay",
    "range_input_producer",
    "read_graph",
    "remove_checkpoint",
    "replica_device_setter",
    "shuffle_batch",
    "shuffle_batch_join",
    "slice_input_producer",
    "start_queue_runners",
    "string_input_producer",
    "summary_iterator",
    "update_checkpoint_state",
    "write_graph",
]

# Each module is loaded on the first use of one of its names: most programs need only a few.
_load_later(
    __name__,
    _homes(
        {
            "aioflow.net.cluster_spec": "ClusterSpec",
            "aioflow.net.server": "Server",
            "aioflow.observe.event_log": "summary_iterator",
            "aioflow.protos.classes": "SaverDef",
            "aioflow.train.adagrad": "AdadeltaOptimizer AdagradDAOptimizer AdagradOptimizer ProximalAdagradOptimizer",
            "aioflow.train.background_saver": "BackgroundSaver",
            "aioflow.train.batching": (
                "batch batch_join maybe_batch maybe_batch_join maybe_shuffle_batch maybe_shuffle_batch_join "
                "shuffle_batch shuffle_batch_join"
            ),
            "aioflow.train.checkpoint_state": (
                "CheckpointReader CheckpointState NewCheckpointReader checkpoint_exists get_checkpoint_mtimes "
                "get_checkpoint_state latest_checkpoint list_variables load_checkpoint load_variable remove_checkpoint "
                "update_checkpoint_state"
            ),
            "aioflow.train.coordinator": "Coordinator",
            "aioflow.train.decay": (
                "cosine_decay cosine_decay_restarts exponential_decay inverse_time_decay linear_cosine_decay "
                "natural_exp_decay noisy_linear_cosine_decay piecewise_constant piecewise_constant_decay "
                "polynomial_decay"
            ),
            "aioflow.train.device_setter": (
                "GreedyLoadBalancingStrategy RandomStrategy byte_size_load_fn replica_device_setter"
            ),
            "aioflow.train.example": (
                "BytesList Example Feature FeatureList FeatureLists Features FloatList Int64List SequenceExample"
            ),
            "aioflow.train.gradient_accumulation": "GradientAccumulationOptimizer",
            "aioflow.train.graph_io": "read_graph write_graph",
            "aioflow.train.initial_checkpoint": "init_from_checkpoint",
            "aioflow.train.input": (
                "input_producer limit_epochs match_filenames_once range_input_producer slice_input_producer "
                "string_input_producer"
            ),
            "aioflow.train.meta_graph": "export_meta_graph",
            "aioflow.train.meta_graph_import": "import_meta_graph",
            "aioflow.train.monitored": (
                "CheckpointSaverHook CheckpointSaverListener CheckpointedInput ChiefSessionCreator FeedFnHook "
                "FinalOpsHook GlobalStepWaiterHook InputSource LoggingTensorHook MonitoredSession "
                "MonitoredTrainingSession NanLossDuringTrainingError NanTensorHook ProfilerHook Scaffold "
                "SecondOrStepTimer SeekableFeeds SessionCreator SessionManager SessionRunArgs SessionRunContext "
                "SessionRunHook SessionRunValues SingularMonitoredSession StepCounterHook StopAtStepHook "
                "SummarySaverHook Supervisor WorkerSessionCreator"
            ),
            "aioflow.train.moving_averages": "ExponentialMovingAverage",
            "aioflow.train.optimizer": "Optimizer",
            "aioflow.train.optimizers": (
                "AdamOptimizer FtrlOptimizer GradientDescentOptimizer MomentumOptimizer "
                "ProximalGradientDescentOptimizer RMSPropOptimizer"
            ),
            "aioflow.train.queue_runner": "QueueRunner add_queue_runner start_queue_runners",
            "aioflow.train.saver": "PendingCheckpoint Saver",
            "aioflow.train.step": (
                "assert_global_step create_global_step get_global_step get_or_create_global_step global_step"
            ),
            "aioflow.train.sync_replicas": "SyncReplicasOptimizer",
        }
    ),
)
