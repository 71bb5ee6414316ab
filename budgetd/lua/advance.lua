-- Brings the ledger to the present, at the numbers of its last call. Put after ledger.lua.

if l then
  local elapsed = clock - l[L_CLOCK]
  if elapsed < 0 then
    elapsed = 0
  end
  --if leased
  quiet = elapsed
  if lending then
    elapsed = pay_debt(elapsed)
  end
  --end
  l[L_CLOCK] = clock
  l[L_NOW] = l[L_NOW] + elapsed
  if n[N_LIMITED] == 1 then
    l[L_ADMISSION], l[L_ADMISSION + 1] = refill(l[L_ADMISSION], l[L_ADMISSION + 1], n[N_ADMISSION], n[N_ADMISSION + 1], n[N_ADMISSION + 2], elapsed)
  end
  l[L_RETRY], l[L_RETRY + 1] = refill(l[L_RETRY], l[L_RETRY + 1], n[N_RETRY], n[N_RETRY + 1], n[N_RETRY + 2], elapsed)
  for i = 0, l[L_UNIT_COUNT] - 1 do
    local at, i_n = L_UNITS + i * L_UNIT + 1, N_UNITS + i * UNIT_NUMBERS + 1
    l[at], l[at + 1] = refill(l[at], l[at + 1], n[i_n], n[i_n + 1], n[i_n + 2], elapsed)
  end
end
