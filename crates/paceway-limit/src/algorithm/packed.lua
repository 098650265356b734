-- Ends a call whose requests all took the plain way. Otherwise their numbers are the begin of the reply.

local told
if plain == '' then
  told = pack('<d', now)
else
  told = pack(n == 4 and '<dddd' or n == 8 and '<dddddddd' or '<' .. string.rep('d', n), unpack(said, 1, n))
  if not long and not new_epoch and #ARGV == 3 then return told end
end

-- The other entries.
local entries = (long or '') .. (ARGV[4] or '')
