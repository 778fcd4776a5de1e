-- Claim a job by its id, whoever's turn it is. ARGV: id, worker id, losses at which a job fails. Returns as claim().
leave_line(ARGV[1])
return claim(ARGV[1], ARGV[2], ARGV[3])
