package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
)

// A machine is what the numbers were measured with.
type machine struct {
	Time     string            `json:"time"`
	CPU      string            `json:"cpu"`
	Cores    int               `json:"cores"`
	System   string            `json:"system"`
	Go       string            `json:"go"`
	Commit   string            `json:"commit"`
	Load     string            `json:"load"` // as the run began: averages over 1, 5 and 15 minutes
	Command  string            `json:"command"`
	Versions map[string]string `json:"versions"` // of the rivals' modules
}

func thisMachine(rivals []rival.Rival, args []string) machine {
	m := machine{
		Time: time.Now().UTC().Format(time.RFC3339), CPU: cpuModel(), Cores: runtime.NumCPU(),
		System: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Commit: commit(),
		Load: loadAverage(), Command: strings.Join(append([]string{"peers"}, args...), " "),
		Versions: map[string]string{},
	}
	info, _ := debug.ReadBuildInfo()
	for _, v := range rivals {
		if v.Module != "" {
			m.Versions[v.Name] = version(info, v.Module)
		}
	}
	return m
}

// version is that of a module in this binary.
func version(info *debug.BuildInfo, module string) string {
	if info == nil {
		return "unknown"
	}
	for _, dep := range info.Deps {
		if dep.Path != module {
			continue
		}
		if dep.Replace != nil {
			return "this checkout"
		}
		if dep.Version == "(devel)" {
			return "this checkout"
		}
		return dep.Version
	}
	return "unknown"
}

// commit is the checkout's, or says that there is none to be seen.
func commit() string {
	hash, err := exec.Command("git", "rev-parse", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	commit := strings.TrimSpace(string(hash))
	if changes, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no").Output(); err != nil || len(changes) > 0 {
		commit += " with changes"
	}
	return commit
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	var a, b, c float64
	if err != nil {
		return "unknown"
	}
	if _, err := fmt.Sscan(string(text), &a, &b, &c); err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%.2f %.2f %.2f", a, b, c)
}
