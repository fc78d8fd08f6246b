package main

import "sync"

// A bank makes payments, and counts them.
type bank struct {
	mu      sync.Mutex // guards what follows
	paid    map[string]int
	refused map[string]int // dead letters
}

func newBank() *bank { return &bank{paid: map[string]int{}, refused: map[string]int{}} }

// pay makes a payment and runs record, both or neither: record stands for what a database does in the same
// transaction, see CompleteTx of the store on Postgres. Without that a consumer that is killed between the two
// leaves a payment that nobody knows of, and no wrapper in the world can tell.
func (b *bank) pay(id string, record func() error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := record(); err != nil {
		return err
	}
	b.paid[id]++
	return nil
}

func (b *bank) refuse(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused[id]++
}

// settled returns how many different bills were paid or refused.
func (b *bank) settled() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.paid) + len(b.refused)
}
