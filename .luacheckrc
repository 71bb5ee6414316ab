-- What luacheck takes for granted in the scripts of budgetd/lua. `tests/it/lua.rs` runs it on the scripts as servers get them.
std = 'lua51'
read_globals = { 'redis', 'KEYS', 'ARGV', 'struct', 'cjson', 'cmsgpack', 'bit' }
max_line_length = false
