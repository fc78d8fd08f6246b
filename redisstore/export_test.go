package redisstore

// Waiting returns how many callers wait.
func (s *Store) Waiting() int { return s.room.Waiting() }
