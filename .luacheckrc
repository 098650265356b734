-- What `make lint` asks of the Lua modules and scripts: they use no name that they do not declare, but for those of Redis.
std = 'lua51'
read_globals = { 'redis', 'struct' }
max_line_length = 140
files['crates/paceway-limit/src/store/redis'] = { read_globals = { 'ARGV', 'KEYS' } }
