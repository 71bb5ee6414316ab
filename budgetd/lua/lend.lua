-- One call of the script for a ledger that lends or may begin to: applies a batch of steps, takes heartbeats and answers a
-- sync. Put last.
--
-- KEYS[1] ledger     KEYS[2], KEYS[3] the two generations of reservations     KEYS[4] queued reservations     KEYS[5] their queue
-- then the operations of the batch, then the keys of what is lent, see epoch.lua
-- ARGV[1] now_ms, or "" for the server's time
-- ARGV[2], ARGV[3] version number and id of the policies the numbers come from
-- ARGV[4] 1: decide even if the ledger has a newer version, with the ledger's numbers
-- ARGV[5] the format to write     ARGV[6] the numbers     ARGV[7] the steps, packed one behind the other
-- ARGV[8...] the reservation id of each step, no two equal; then what epoch.lua names
-- Returns the reply as group.lua does for one ledger, and behind the answers to the steps: the epoch's number and id or 0,
-- holders, and 0 if the ledger needs no heartbeats, else 1 and the time since the last call; then the answers to asks.


local given = ARGV[6]
version_number, version_id, force, named_format = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
packed_steps, keys_at = ARGV[7], 1
clock = read_clock(ARGV[1])
read_ledger(redis.call('GET', KEYS[1]), given, version_number, version_id)
begin_call()
-- The numbers of the call, nil where the ledger has newer ones.
local given_numbers
if not l or version_number > l[L_NUMBER] or (version_number == l[L_NUMBER] and version_id >= l[L_ID]) then
  given_numbers = unpack_numbers(given, 1)
end
if l then
  open_epoch_if_lost(n, given_numbers)
end

local status, adopted, created = STATUS_DECIDED, nil, not l
begins_nothing = created
if created then
  new_ledger(given, version_number, version_id, clock)
  open_epoch_if_lost(n, n)
else
  advance(clock)
  if version_number < l[L_NUMBER] or (version_number == l[L_NUMBER] and version_id < l[L_ID]) then
    if force ~= 1 then
      return { STATUS_STALE, l[L_NUMBER], l[L_ID] }
    end
    status = STATUS_FORCED
  elseif version_number ~= l[L_NUMBER] or version_id ~= l[L_ID] then
    adopted = given_numbers
    if lending then
      l[L_NUMBER], l[L_ID], packed_numbers = version_number, version_id, given
    else
      settle_version(given)
    end
  end
end
if lending then
  begin_lending(adopted)
end
away = lending and lending.lost and l[L_NOW] < lending.wait
ids = { unpack(ARGV, 8) }
begin_reservations()
drop_ended()
if #ids > 0 then
  look_up_reservations()
end
look_up_operations(#KEYS - 5)
begin_reply(status)
decide_steps()

local answered = {}
if has_ask == 2 then
  answered = revoke()
elseif has_ask == 1 then
  local gone_before = reservations_gone
  reservations_gone = false
  answered = answer_asks()
  begins_nothing = begins_nothing and absent
  if reservations_gone then
    -- What was dropped has gone with everything else.
    begin_reservations()
  end
  reservations_gone = reservations_gone or gone_before
end
local lends, at = lending and not begins_nothing, #output
output[at + 1], output[at + 2] = lends and lending.number or 0, lends and lending.id or 0
output[at + 3], output[at + 4] = lends and lending.holders or 0, lends and needs_beats(ledger_now) and 1 + quiet or 0
for i = 1, #answered do
  output[at + 4 + i] = answered[i]
end
if begins_nothing then
  return output
end

local format = format_to_write(named_format)
if reservations_gone or (created and redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4], KEYS[5]) > 0) then
  -- As in plain.lua: records that have outlived their ledger count nowhere.
  unlink_reservations()
end
write_reservations(format)
write_operations(format)
write_lending(n[N_IDLE_TTL], format)
store_ledger(KEYS[1], format)
return output
