package report

import (
	"fmt"
	"slices"
	"strings"
)

// A Workload is one thing that is measured.
type Workload struct {
	Name  string // in flags and rows
	Title string
	About string // a sentence for who reads the table
}

// Workloads are all that there are, in the order of the tables.
var Workloads = []Workload{
	{"replay", "Replay of any live key", "Each operation replays one of all live keys, each as likely as the other."},
	{"hot", "Replay of one hot key", "Each operation replays the same key."},
	{"zipf", "Nine Zipf replays to one fresh cycle", "The replays are Zipf-distributed (1.01) over the live keys."},
	{"fresh", "Fresh cycle while records expire", "Claim and completion of new keys that live for a second, as many of which expire as come."},
	{"wait", "Duplicates that wait", "The time from Complete until the last of eight duplicates that wait has the response."},
	{"memory", "Memory of a live record", "Key (36 bytes) and response (200 bytes) included: the process's memory as the kernel counts it, and the heap, of which freecache takes all before it is filled."},
	{"gc", "Processor time of one garbage collection", "One runtime.GC() with so many live records."},
	{"growth", "Replay against live keys", "Replays of any live key by one goroutine, while the store grows."},
	{"tail-gc", "Slowest replays while the collector runs", "A collection begins every 100 ms, or when the last one has ended, while one goroutine times its replays."},
	{"tail-expiry", "Slowest replays while records expire", "As many records as there are keys expire within one second, while one goroutine times its replays of others."},
}

// SelectWorkloads returns the names in a comma-separated list; an empty one means all.
func SelectWorkloads(names string) (map[string]bool, error) {
	var known []string
	for _, w := range Workloads {
		known = append(known, w.Name)
	}
	chosen := map[string]bool{}
	if names == "" {
		names = strings.Join(known, ",")
	}
	for name := range strings.SplitSeq(names, ",") {
		if name = strings.TrimSpace(name); !slices.Contains(known, name) {
			return nil, fmt.Errorf("unknown workload %q: choose from %s", name, strings.Join(known, ", "))
		}
		chosen[name] = true
	}
	return chosen, nil
}
