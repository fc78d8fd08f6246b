package redisstore

import (
	"context"
	"log/slog"
	"strings"
	"time"
)

const (
	levelProbe   = slog.LevelWarn
	probeTimeout = 10 * time.Second
)

// probe asks a server once what it does when its memory is full, and warns when it may drop records: an operation
// whose claim was dropped runs twice. INFO is asked, since managed servers often forbid CONFIG.
func (s *Store) probe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	info, err := s.adapter.Info(ctx)
	policy, known := policyOf(info)
	switch {
	case ctx.Err() != nil && err != nil:
		// Closed, or a server that does not answer, which callers see for themselves.
	case err != nil || !known:
		s.cfg.Logger.LogAttrs(ctx, levelProbe, "redisstore: the server does not tell its maxmemory-policy; it must be noeviction, or operations may run twice",
			slog.Any("error", err))
	case policy != "noeviction":
		s.cfg.Logger.LogAttrs(ctx, levelProbe, "redisstore: the server evicts records when its memory is full, so operations may run twice; set maxmemory-policy to noeviction",
			slog.String("maxmemory-policy", policy))
	}
}

// policyOf finds the line in what INFO says.
func policyOf(info string) (policy string, known bool) {
	for line := range strings.Lines(info) {
		if policy, ok := strings.CutPrefix(strings.TrimSpace(line), "maxmemory_policy:"); ok {
			return policy, true
		}
	}
	return "", false
}
