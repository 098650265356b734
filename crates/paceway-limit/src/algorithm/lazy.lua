-- How the long way is put together. Redis executes the whole text for each call, and every `function` that the execution
-- comes to takes memory and time, about as much as three calls of a short one. All of them together took longer than most
-- decisions. So most of the long way is in parts, which are made when something first asks for them: `lazy.gates`, or `lazy[84]`
-- for the algorithm of this kind.
--
-- The text of a part is a branch of `make`, in one file or in several that follow each other:
--
--   if part == 'gates' then
--   local function ends(gate) … end
--   return { ends = ends }
--   end
--
-- Parts find each other in `lazy`, so the order of their files does not matter. The functions that most calls need are outside of
-- `make`. In the code that most decisions execute, `for i = 1, #list` stands for `ipairs`, a comparison for `math.max`, and a table is made with all
-- of its fields: each of these saves hundreds of instructions.

local make
local lazy = setmetatable({}, { __index = function(lazy, name)
  local part = make(name)
  lazy[name] = part
  return part
end })
