"""Acting: environments, policies and their networks, normalisation of observations, and rollouts."""

from stellaris.acting.envs import Vectorised as Vectorised
from stellaris.acting.envs import configure as configure
from stellaris.acting.policies import ActorCritic as ActorCritic
from stellaris.acting.policies import CachingNetwork as CachingNetwork
from stellaris.acting.policies import Network as Network
from stellaris.acting.policies import Pixels as Pixels
from stellaris.acting.policies import Policy as Policy
from stellaris.acting.policies import PolicyVersion as PolicyVersion
from stellaris.acting.policies import RecurrentNetwork as RecurrentNetwork
from stellaris.acting.recurrent import EquinoxMemory as EquinoxMemory
from stellaris.acting.recurrent import FlaxMemory as FlaxMemory
from stellaris.acting.saving import load_policy as load_policy
from stellaris.acting.saving import save_policy as save_policy
from stellaris.acting.vector import EnvSpec as EnvSpec
from stellaris.acting.vector import Step as Step
from stellaris.acting.vector import VectorEnv as VectorEnv
