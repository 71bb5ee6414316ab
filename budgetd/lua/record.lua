-- What is kept of one holder: its lives and the grants of each that may still be in use. The mirror of
-- budget/src/ledger/leases/holders.rs. Put after lending.lua.
--
-- What is only kept stays as it is packed: reports, and of each grant what was said to the holder: value, moved and curve.

-- What of a packed report says what was asked.
local function asked_of(report)
  return string.sub(report, 1, 7) .. string.sub(report, REPORT_BYTES)
end

local function unpack_record(packed)
  packed = mark(packed, 'holder')
  local _, weight, demand, share, idle, revoked, restarted, due, count, p = struct.unpack(HOLDER_FORMAT, packed)
  local lives = {}
  for i = 1, count do
    local incarnation, sequence, nonce, answered, slots, measured_ms, falls, count_of_grants
    incarnation, sequence, nonce, answered, slots, measured_ms, falls, count_of_grants, p =
      struct.unpack(LIFE_FORMAT, packed, p)
    local lingering, grants = {}, {}
    for j = 1, 2 * falls, 2 do
      lingering[j], lingering[j + 1], p = struct.unpack(LINGERING_FORMAT, packed, p)
    end
    local charged
    charged, p = unpack_amounts(packed, p)
    local report_at = p
    p = p + REPORT_BYTES + ASKED_BYTES * string.byte(packed, p + REPORT_BYTES - 1)
    local measured_at = p
    p = p + 8 + ASKED_BYTES * string.byte(packed, p + 7)
    local grants_at = p
    for j = 1, count_of_grants do
      local generation, granted, ttl, said_at = struct.unpack(GRANT_FORMAT, packed, p)
      local value, curve
      value, p = unpack_amounts(packed, said_at)
      curve, p = unpack_curve(packed, p + AMOUNTS_BYTES + UNIT_AMOUNTS_BYTES * string.byte(packed, p + AMOUNTS_BYTES - 1))
      grants[j] = {
        generation = generation, granted = granted, ttl = ttl, value = value, curve = curve,
        said = string.sub(packed, said_at, p - 1),
      }
    end
    lives[i] = {
      incarnation = incarnation, sequence = sequence, nonce = nonce, answered = answered, slots = slots,
      lingering = lingering, charge = charged, report = string.sub(packed, report_at, measured_at - 1),
      measured = string.sub(packed, measured_at, grants_at - 1), measured_ms = measured_ms, grants = grants,
    }
  end
  if p ~= #packed + 1 then
    corrupt('record of a holder')
  end
  return {
    weight = weight, demand = demand, share = share, idle = idle, revoked = revoked, restarted = restarted,
    due = due >= 0 and due or nil, lives = lives,
  }
end

local function pack_record(r)
  local lives = r.lives
  local packed = struct.pack(HOLDER_FORMAT, FORMAT_BYTE, r.weight, r.demand, r.share, r.idle, r.revoked, r.restarted,
    r.due or -1, #lives)
  for i = 1, #lives do
    local life, falls, grants = lives[i], '', ''
    for j = 1, #life.lingering, 2 do
      falls = falls .. struct.pack(LINGERING_FORMAT, life.lingering[j], life.lingering[j + 1])
    end
    for j = 1, #life.grants do
      local g = life.grants[j]
      grants = grants .. struct.pack(GRANT_FORMAT, g.generation, g.granted, g.ttl) .. g.said
    end
    packed = packed
      .. struct.pack(LIFE_FORMAT, life.incarnation, life.sequence, life.nonce, life.answered, life.slots, life.measured_ms,
        #life.lingering / 2, #life.grants)
      .. falls .. pack_amounts(life.charge) .. life.report .. life.measured .. grants
  end
  return packed
end

local function record_charge(r)
  local lives = r.lives
  local total = lives[1] and lives[1].charge or ZERO
  for i = 2, #lives do
    total = join(total, lives[i].charge, plus)
  end
  return total
end
