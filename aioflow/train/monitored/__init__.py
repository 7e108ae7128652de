"""Supervised training: sessions that restore, save, stop, log and recover through hooks around every run."""

from aioflow.train.monitored.checkpointed_input import CheckpointedInput as CheckpointedInput
from aioflow.train.monitored.checkpointed_input import InputSource as InputSource
from aioflow.train.monitored.checkpointed_input import SeekableFeeds as SeekableFeeds
from aioflow.train.monitored.checkpointing import CheckpointSaverHook as CheckpointSaverHook
from aioflow.train.monitored.checkpointing import CheckpointSaverListener as CheckpointSaverListener
from aioflow.train.monitored.hooks import FeedFnHook as FeedFnHook
from aioflow.train.monitored.hooks import FinalOpsHook as FinalOpsHook
from aioflow.train.monitored.hooks import GlobalStepWaiterHook as GlobalStepWaiterHook
from aioflow.train.monitored.hooks import LoggingTensorHook as LoggingTensorHook
from aioflow.train.monitored.hooks import NanLossDuringTrainingError as NanLossDuringTrainingError
from aioflow.train.monitored.hooks import NanTensorHook as NanTensorHook
from aioflow.train.monitored.hooks import StepCounterHook as StepCounterHook
from aioflow.train.monitored.hooks import StopAtStepHook as StopAtStepHook
from aioflow.train.monitored.monitored_session import MonitoredSession as MonitoredSession
from aioflow.train.monitored.monitored_session import SingularMonitoredSession as SingularMonitoredSession
from aioflow.train.monitored.recording_hooks import ProfilerHook as ProfilerHook
from aioflow.train.monitored.recording_hooks import SummarySaverHook as SummarySaverHook
from aioflow.train.monitored.scaffold import Scaffold as Scaffold
from aioflow.train.monitored.session_creation import ChiefSessionCreator as ChiefSessionCreator
from aioflow.train.monitored.session_creation import SessionCreator as SessionCreator
from aioflow.train.monitored.session_creation import SessionManager as SessionManager
from aioflow.train.monitored.session_creation import WorkerSessionCreator as WorkerSessionCreator
from aioflow.train.monitored.session_run_hook import SessionRunArgs as SessionRunArgs
from aioflow.train.monitored.session_run_hook import SessionRunContext as SessionRunContext
from aioflow.train.monitored.session_run_hook import SessionRunHook as SessionRunHook
from aioflow.train.monitored.session_run_hook import SessionRunValues as SessionRunValues
from aioflow.train.monitored.supervisor import Supervisor as Supervisor
from aioflow.train.monitored.timers import SecondOrStepTimer as SecondOrStepTimer
from aioflow.train.monitored.training_session import MonitoredTrainingSession as MonitoredTrainingSession

__all__ = [
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "CheckpointedInput",
    "ChiefSessionCreator",
    "FeedFnHook",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "InputSource",
    "LoggingTensorHook",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "ProfilerHook",
    "Scaffold",
    "SecondOrStepTimer",
    "SeekableFeeds",
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
    "WorkerSessionCreator",
]
