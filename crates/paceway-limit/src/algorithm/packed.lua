-- Ends a call whose requests all took the plain way. The others begin the reply with those that did.

if plain == '' then
  reply[1] = ''
else
  reply[1] = pack(n == 4 and '<dddd' or n == 8 and '<dddddddd' or '<' .. string.rep('d', n), unpack(said, 1, n))
  if not long and not new_epoch and #ARGV == 3 then return reply[1] end
  if long then
    for i = 4, #ARGV do long[#long + 1] = ARGV[i] end
    args = long
  end
end

-- The reply gets room for one entry at once: a table that grows number by number is copied again and again.
reply = { reply[1], nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }
