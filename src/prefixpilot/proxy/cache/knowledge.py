from prefixpilot.engines.base import Continuity
from prefixpilot.residency.state import CacheState
class Knowledge:
    def __init__(self, listening):
        self.s={}; self.l=listening
    def note(self, status):
        self.s[(status.source,status.rank)]=status.continuity
    @property
    def state(self):
        if not self.l: return CacheState.UNKNOWN
        if not self.s or any(c is not Continuity.WHOLE for c in self.s.values()): return CacheState.DEGRADED
        return CacheState.EXACT
