-- Says that a replica lives, and counts those that do.
-- KEYS[1] replicas (sorted set: replica id by the time of its last contact)
-- ARGV[1] now_ms, or "" for the server's time     ARGV[2] replica id
-- ARGV[3] a replica silent for longer than this many ms is forgotten     ARGV[4] most replicas remembered
-- Returns the number of replicas, this one included.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local memory = tonumber(ARGV[3])
redis.call('ZADD', KEYS[1], now, ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - memory)
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - tonumber(ARGV[4]))
redis.call('PEXPIRE', KEYS[1], memory)
return redis.call('ZCARD', KEYS[1])
