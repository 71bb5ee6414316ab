-- What is kept of one holder: its lives and the grants of each that may still be in use. The mirror of
-- budget/src/ledger/leases/holders.rs. Put after lending.lua.

local function unpack_record(packed)
  local r, p, count, due = { lives = {} }, nil, nil, nil
  r.weight, r.demand, r.share, r.idle, r.revoked, r.restarted, due, count, p =
    struct.unpack(RECORD_OF_HOLDER_FORMAT, packed)
  r.due = due >= 0 and due or nil
  for i = 1, count do
    local life, falls, grants, asked = { grants = {}, lingering = {} }, nil, nil, nil
    life.incarnation, life.sequence, life.nonce, life.answered, life.slots, life.measured_ms, falls, grants, p =
      struct.unpack(LIFE_FORMAT, packed, p)
    for j = 1, 2 * falls, 2 do
      life.lingering[j], life.lingering[j + 1], p = struct.unpack(LINGERING_FORMAT, packed, p)
    end
    life.charge, p = unpack_amounts(packed, p)
    life.usage, p = unpack_report(packed, p)
    life.measured = {}
    life.measured[1], asked, p = struct.unpack('>i7B', packed, p)
    p = unpack_asked(life.measured, 2, asked, packed, p)
    for j = 1, grants do
      local g = {}
      g.generation, g.granted, g.ttl, p = struct.unpack(GRANT_FORMAT, packed, p)
      g.value, p = unpack_amounts(packed, p)
      g.moved, p = unpack_amounts(packed, p)
      g.curve, p = unpack_curve(packed, p)
      life.grants[j] = g
    end
    r.lives[i] = life
  end
  if p ~= #packed + 1 then
    error('CORRUPT record of a holder')
  end
  return r
end

local function pack_record(r)
  local packed = struct.pack(RECORD_OF_HOLDER_FORMAT, r.weight, r.demand, r.share, r.idle, r.revoked, r.restarted,
    r.due or -1, #r.lives)
  for _, life in ipairs(r.lives) do
    local usage, measured, falls = life.usage, life.measured, ''
    for i = 1, #life.lingering, 2 do
      falls = falls .. struct.pack(LINGERING_FORMAT, life.lingering[i], life.lingering[i + 1])
    end
    packed = packed
      .. struct.pack(LIFE_FORMAT, life.incarnation, life.sequence, life.nonce, life.answered, life.slots, life.measured_ms,
        #life.lingering / 2, #life.grants)
      .. falls
      .. pack_amounts(life.charge)
      .. pack_report(usage)
      .. struct.pack('>i7B', measured[1], (#measured - 1) / 2)
      .. pack_asked(measured, 2)
    for _, g in ipairs(life.grants) do
      packed = packed .. struct.pack(GRANT_FORMAT, g.generation, g.granted, g.ttl) .. pack_amounts(g.value)
        .. pack_amounts(g.moved) .. pack_curve(g.curve)
    end
  end
  return packed
end

local function record_charge(r)
  local total = { 0, 0, 0, 0 }
  for _, life in ipairs(r.lives) do
    total = join(total, life.charge, add)
  end
  return total
end
