-- What scripts that only look have in common. Put after lending.lua.

-- What the store's clock has gained, before this look would pay of it.
local shown_debt

-- Reads a ledger and brings it to the present. given: now_ms, or '' for the server's time.
local function show_ledger(key, lending_key, given)
  read_ledger(redis.call('GET', key))
  if not l then
    return
  end
  if l[L_PARTS] % 2 == PART_LENDS then
    load_lending(lending_key)
    if lending then
      whole, shown_debt = n, lending.debt
      n = within(lending.direct)
    end
  end
  advance(read_clock(given))
end
