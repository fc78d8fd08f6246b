package httpcases

import (
	"context"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// ErrDown is what a store fails with in tests.
const ErrDown = downError("store is down")

type downError string

// Error implements error.
func (e downError) Error() string { return string(e) }

// An OutcomeStore answers every Begin alike.
type OutcomeStore struct {
	idem.Store
	Outcome idem.Outcome
	Err     error
}

// Begin implements [idem.Store].
func (s OutcomeStore) Begin(context.Context, idem.Request) (idem.Outcome, error) {
	return s.Outcome, s.Err
}

// A FaultyStore is a store whose methods can be made to fail, or be watched. A nil function does nothing.
// Like a store on a network, and unlike the engine, it fails when the context is done.
type FaultyStore struct {
	idem.Store
	OnBegin, OnAbandon, OnExtend func() error
	OnComplete                   func(*idem.Response) error
}

// Begin implements [idem.Store].
func (s *FaultyStore) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	if s.OnBegin != nil {
		if err := s.OnBegin(); err != nil {
			return idem.Outcome{}, err
		}
	}
	return s.Store.Begin(ctx, req)
}

// Complete implements [idem.Store].
func (s *FaultyStore) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	if s.OnComplete != nil {
		if err := s.OnComplete(&resp); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.Store.Complete(ctx, c, resp)
}

// Abandon implements [idem.Store].
func (s *FaultyStore) Abandon(ctx context.Context, c idem.Claim) error {
	if s.OnAbandon != nil {
		if err := s.OnAbandon(); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.Store.Abandon(ctx, c)
}

// Extend implements [idem.Store].
func (s *FaultyStore) Extend(ctx context.Context, c idem.Claim, lease time.Duration) error {
	if s.OnExtend != nil {
		if err := s.OnExtend(); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.Store.Extend(ctx, c, lease)
}

// A LeasingStore grants the lease that the test says.
type LeasingStore struct {
	idem.Store
	Lease *time.Duration
}

// Begin implements [idem.Store].
func (s LeasingStore) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	req.Lease = *s.Lease
	return s.Store.Begin(ctx, req)
}
