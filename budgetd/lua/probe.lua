-- A real write through a script, as every step is: shows whether the store works, not only whether it answers.
-- KEYS[1] a key of its own
-- ARGV[1] replica id     ARGV[2] the key's life in ms
-- Returns 1.
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
