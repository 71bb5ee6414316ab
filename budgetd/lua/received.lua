-- Counts attempts that a dependency's own side received, if there is a ledger to compare them with.
-- KEYS[1] ledger     KEYS[2] what was counted so far
-- ARGV[1] attempts     ARGV[2] the count's life in ms
-- Returns 1, or 0 without a ledger.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
local sum = (tonumber(redis.call('GET', KEYS[2])) or 0) + tonumber(ARGV[1])
redis.call('SET', KEYS[2], math.min(sum, 9007199254740991), 'PX', ARGV[2])
return 1
