"""What is done in Redis in one step: saving a turn, forgetting a conversation. Lua, as Redis runs it."""

from __future__ import annotations

from typing import Final

SAVED: Final = 1
REFUSED: Final = 0
INCOMPLETE: Final = -1

SAVE: Final = """
-- KEYS: conversation, used, sizes, bytes, gone, store, deleted, sent
-- ARGV: store, digest, used, horizon, expire, expected, generation, sent, replies, identity, parent, turns, texts, ...
local c, digest = KEYS[1], ARGV[2]
if redis.call('GET', KEYS[6]) ~= ARGV[1] then return redis.error_reply('OTHERSTORE it is another store') end
local g = redis.call('HGET', c, 'g')
local used = redis.call('ZSCORE', KEYS[2], digest)
if g and used and tonumber(used) < tonumber(ARGV[4]) then
  redis.call('DEL', c)
  redis.call('DECRBY', KEYS[4], redis.call('HGET', KEYS[3], digest) or 0)
  redis.call('HDEL', KEYS[3], digest)
  g = false
elseif g and ARGV[6] ~= '' and ARGV[6] ~= g then
  return {0}
end
if not g and ARGV[6] ~= '' and redis.call('ZSCORE', KEYS[7], digest) then return {0} end
local count, texts = tonumber(ARGV[12]), tonumber(ARGV[13])
local first = ARGV[10]
if count > 0 then first = ARGV[11] end
if first ~= '' and redis.call('HEXISTS', c, 'o:' .. first) == 0 then return {-1} end
local added = 0
if not g then
  g = ARGV[7]
  redis.call('HSET', c, 'g', g, 'v', 0)
  added = added + 256
end
local before = tonumber(redis.call('HGET', c, 'v'))
local at = 14
for _ = 1, count do
  local identity = ARGV[at]
  if redis.call('HEXISTS', c, 'o:' .. identity) == 0 then
    redis.call('HSET', c, 'o:' .. identity, redis.call('HINCRBY', c, 'n', 1), 't:' .. identity, ARGV[at + 1],
      'r:' .. identity, ARGV[at + 2], 's:' .. identity, ARGV[at + 3])
    added = added + #ARGV[at + 1] + #ARGV[at + 2] + 256
  end
  at = at + 4
end
for _ = 1, texts do
  if redis.call('HSETNX', c, 'x:' .. ARGV[at], ARGV[at + 1]) == 1 then added = added + #ARGV[at + 1] + 64 end
  at = at + 2
end
local last = ARGV[10]
local old = redis.call('HGET', c, 'r:' .. last) or ''
redis.call('HSET', c, 'r:' .. last, ARGV[9])
added = added + #ARGV[9] - #old
local sent = tonumber(redis.call('HGET', c, 's:' .. last) or 0)
if tonumber(ARGV[8]) > sent then redis.call('HSET', c, 's:' .. last, ARGV[8]) end
if tonumber(ARGV[8]) > tonumber(redis.call('GET', KEYS[8]) or 0) then redis.call('SET', KEYS[8], ARGV[8]) end
local after = redis.call('HINCRBY', c, 'v', 1)
redis.call('HINCRBY', KEYS[3], digest, added)
redis.call('INCRBY', KEYS[4], added)
if not used or tonumber(used) < tonumber(ARGV[3]) then redis.call('ZADD', KEYS[2], ARGV[3], digest) end
redis.call('EXPIRE', c, ARGV[5])
redis.call('ZREM', KEYS[5], digest)
redis.call('ZREM', KEYS[7], digest)
return {1, g, before, after, redis.call('HGET', c, 'n')}
"""
"""Keeps turns of one branch, parents first, and what is new of the last one. Answers ``{1, generation, version before,
version after, turns ever}``; ``{0}``: the conversation was deleted meanwhile; ``{-1}``: a parent is missing."""

FORGET: Final = """
-- KEYS: conversation, used, sizes, bytes, gone, store, deleted
-- ARGV: store, digest, why ('gone' or 'deleted' or 'pruned'), now, most, horizon, version, field ...
local c, digest = KEYS[1], ARGV[2]
if redis.call('GET', KEYS[6]) ~= ARGV[1] then return redis.error_reply('OTHERSTORE it is another store') end
if ARGV[3] == 'pruned' then
  if redis.call('HGET', c, 'v') ~= ARGV[7] then return 0 end
  local freed = 0
  for i = 8, #ARGV do
    freed = freed + #(redis.call('HGET', c, ARGV[i]) or '') + 64
    redis.call('HDEL', c, ARGV[i])
  end
  redis.call('HINCRBY', c, 'v', 1)
  redis.call('HINCRBY', KEYS[3], digest, -freed)
  redis.call('DECRBY', KEYS[4], freed)
  return 1
end
local used = redis.call('ZSCORE', KEYS[2], digest)
if ARGV[3] == 'gone' and (not used or tonumber(used) >= tonumber(ARGV[6])) then return 0 end
redis.call('DEL', c)
redis.call('ZREM', KEYS[2], digest)
redis.call('DECRBY', KEYS[4], redis.call('HGET', KEYS[3], digest) or 0)
redis.call('HDEL', KEYS[3], digest)
redis.call('ZREM', KEYS[5], digest)
local told = KEYS[5]
if ARGV[3] == 'deleted' then told = KEYS[7] end
redis.call('ZADD', told, ARGV[4], digest)
redis.call('ZREMRANGEBYRANK', told, 0, -1 - tonumber(ARGV[5]))
return 1
"""
"""Forgets a conversation, and notes that it had to go (unless it was used since) or was deleted; or prunes fields of
it, if it is still of that version. Answers whether it did."""
