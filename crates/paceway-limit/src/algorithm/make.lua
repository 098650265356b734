-- The function that makes the parts (lazy.lua). Its branches are the files between this one and entries.lua.
make = function(part)
