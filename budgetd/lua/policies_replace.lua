-- Replaces the policies of the namespace if their version is still the expected one.
-- Numbers come and go as the texts they are stored as: nothing is converted.
-- KEYS[1] policies (hash: number, id, body, and import if the last import left a hash)
-- ARGV[1] 1: some are expected, 0: none     ARGV[2], ARGV[3] their version number and id
-- ARGV[4], ARGV[5] new version number and id     ARGV[6] new body     ARGV[7] 1: an import hash follows in ARGV[8]
-- Returns {1} if done, else {0, number, id, body, import} as they stand, each false if it is missing.
local now = redis.call('HMGET', KEYS[1], 'number', 'id', 'body', 'import')
local expected
if ARGV[1] == '1' then
  expected = now[1] == ARGV[2] and now[2] == ARGV[3]
else
  expected = not (now[1] or now[2] or now[3])
end
if not expected then
  return { 0, now[1], now[2], now[3], now[4] }
end
if ARGV[7] == '1' then
  redis.call('HSET', KEYS[1], 'number', ARGV[4], 'id', ARGV[5], 'body', ARGV[6], 'import', ARGV[8])
else
  redis.call('HSET', KEYS[1], 'number', ARGV[4], 'id', ARGV[5], 'body', ARGV[6])
  redis.call('HDEL', KEYS[1], 'import')
end
return { 1 }
