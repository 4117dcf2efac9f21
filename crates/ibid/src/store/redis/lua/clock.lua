-- Reads the clock. KEYS 1 settings, which lead to their server.
return { now_s, now_us }
