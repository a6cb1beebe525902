// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// link measures a link with 50 ms between the hub and the member. Cold is a GET for which there is no open connection
// to the backend.
func (h *measurer) link() (map[string]float64, error) {
	if err := h.start(1, true); err != nil {
		return nil, err
	}
	c := h.client(0)
	ctx := context.Background()
	cold, err := repeat(h.few(20), func() error {
		c.cool()
		return c.get(ctx, "/small", http.Header{coldHeader: {"1"}})
	})
	if err != nil {
		return nil, err
	}
	warm, err := repeat(h.few(40), func() error { return c.get(ctx, "/small", nil) })
	if err != nil {
		return nil, err
	}
	one, err := throughput(c, 1, h.few(64<<20))
	return map[string]float64{
		"link-cold": millis(quantile(cold, 0.5)), "link-warm": millis(quantile(warm, 0.5)), "link-bulk": one,
	}, err
}

// memory measures the hub's memory for idle tunnels, and for one idle watch through each of them.
func (h *measurer) memory() (map[string]float64, error) {
	n := h.few(2000)
	none, err := takeStock()
	if err != nil {
		return nil, err
	}
	if err := h.start(n, false); err != nil {
		return nil, err
	}
	idle, err := takeStock()
	if err != nil {
		return nil, err
	}
	clients := make([]*client, n)
	var wait sync.WaitGroup
	var failed atomic.Pointer[error]
	slots := make(chan struct{}, 8)
	for i := range n {
		clients[i] = h.client(i)
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			if _, err := clients[i].send(context.Background(), http.MethodGet, "/watch", nil, nil); err != nil { // a watch stays open
				failed.Store(&err)
			}
		})
	}
	wait.Wait()
	if err := failed.Load(); err != nil {
		return nil, *err
	}
	watching, err := takeStock()
	if err != nil {
		return nil, err
	}
	runtime.KeepAlive(clients)
	per := func(a, b int) float64 { return float64(b-a) / float64(n) }
	return map[string]float64{
		"idle-rss": per(none.bytes, idle.bytes) / 1000, "idle-goroutines": per(none.goroutines, idle.goroutines),
		"watch-rss": per(idle.bytes, watching.bytes) / 1000, "watch-goroutines": per(idle.goroutines, watching.goroutines),
	}, nil
}

// killed measures the time until a watch ends after the agent was killed.
func (h *measurer) killed() (map[string]float64, error) {
	took, err := h.noticed(syscall.SIGKILL, 10*time.Second)
	return map[string]float64{"killed": millis(took)}, err
}

// hung measures the same after the agent was suspended with a signal, while its kernel still accepts bytes.
func (h *measurer) hung() (map[string]float64, error) {
	limit := 75 * time.Second
	if h.Quick {
		limit = time.Second
	}
	took, err := h.noticed(syscall.SIGSTOP, limit)
	return map[string]float64{"hung": took.Seconds()}, err
}

// noticed sends a signal to the agent, and waits until a watch through its tunnel ends, but no longer than limit.
func (h *measurer) noticed(signal os.Signal, limit time.Duration) (time.Duration, error) {
	if err := h.start(1, false); err != nil {
		return 0, err
	}
	response, err := h.client(0).send(context.Background(), http.MethodGet, "/watch", nil, nil)
	if err != nil {
		return 0, err
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}()
	settle()
	begun := time.Now()
	if err := h.agent.cmd.Process.Signal(signal); err != nil {
		return 0, fmt.Errorf("signal agent: %w", err)
	}
	select {
	case <-over:
	case <-time.After(limit):
	}
	return time.Since(begun), nil
}

// stock is the memory and the number of goroutines of this process.
type stock struct{ bytes, goroutines int }

// takeStock first collects garbage, and waits until goroutines that were about to end have ended.
func takeStock() (stock, error) {
	settle()
	debug.FreeOSMemory()
	debug.FreeOSMemory() // the first leaves what pools keep for one collection
	bytes, err := residentBytes()
	return stock{bytes: bytes, goroutines: runtime.NumGoroutine()}, err
}

// residentBytes returns the VmRSS of this process.
func residentBytes() (int, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("read memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")))
			return kib << 10, err
		}
	}
	return 0, errors.New("read memory: no VmRSS")
}
