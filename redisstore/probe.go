package redisstore

import (
	"context"
	"log/slog"
	"strings"
	"time"
)

const (
	levelProbe    = slog.LevelWarn
	probeTimeout  = 10 * time.Second
	probeAgain    = time.Second // after a server did not answer; twice as long each time
	maxProbeAgain = time.Minute
)

// probe asks a server what it does when its memory is full, and warns when it may drop records: an operation
// whose claim was dropped runs twice. INFO is asked, since managed servers often forbid CONFIG. A server that is down
// when the store is made, or not ready, is asked again until it answers.
func (s *Store) probe(ctx context.Context) {
	for pause := probeAgain; ; pause = min(2*pause, maxProbeAgain) {
		info, err := s.askInfo(ctx)
		if err == nil || isAnswer(err) {
			s.warn(ctx, info, err)
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

func (s *Store) askInfo(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return s.adapter.Info(ctx)
}

// isAnswer reports whether err is what a server says that is there to stay: its text begins with a code in capitals.
func isAnswer(err error) bool {
	code, _, _ := strings.Cut(err.Error(), " ")
	return code != "LOADING" && code != "" && strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// warn tells of what a server said.
func (s *Store) warn(ctx context.Context, info string, err error) {
	policy, known := policyOf(info)
	switch {
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
