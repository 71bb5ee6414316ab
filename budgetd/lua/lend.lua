-- What a call for a ledger that lends does, in its order; ends the script. Put after lease.lua and answers of asks.

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
local lends, at = lending and not begins_nothing, #out
out[at + 1], out[at + 2] = lends and lending.number or 0, lends and lending.id or 0
out[at + 3], out[at + 4] = lends and lending.holders or 0, lends and needs_beats(now) and 1 + quiet or 0
for i = 1, #answered do
  out[at + 4 + i] = answered[i]
end
if begins_nothing then
  return out
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
return out
