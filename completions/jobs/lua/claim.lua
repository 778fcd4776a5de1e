-- Claim a job by its id, whoever's turn it is. ARGV: id, worker id, worker failures at which a job fails.
-- Returns as claim().
fair_remove(ARGV[1])
return claim(ARGV[1], ARGV[2], ARGV[3])
