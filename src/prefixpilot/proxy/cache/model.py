from prefixpilot.prefix_cache import PagedPrefixCache, Segment
from prefixpilot.proxy.cache.watch import Prediction
from prefixpilot.residency.page_keys import page_keys
from prefixpilot.residency.base import reported_tokens
class OwnModel:
    def __init__(self, page, cap):
        self.page=page
        self.c=PagedPrefixCache(cap, page)
    def _p(self, prompt, facts):
        return [Segment(k, self.page) for k in page_keys(prompt.token_ids, self.page, ((facts.salt,),) if facts.salt else (), facts.model or None)]
    def predict(self, prompt, facts):
        return Prediction(reported_tokens(self.c.match_prefix(self._p(prompt,facts)), prompt.tokens, self.page), "model", self.page)
    def observe(self, prompt, facts, cached):
        self.c.access(self._p(prompt,facts))
