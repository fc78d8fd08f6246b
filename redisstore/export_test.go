package redisstore

import "time"

// Waiting returns how many callers wait.
func (s *Store) Waiting() int { return s.room.Waiting() }

// SetBound bounds calls that settle a claim. It comes before the first of them.
func (s *Store) SetBound(d time.Duration) { s.ends.bound = d }
