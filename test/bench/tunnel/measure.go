// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// few is n, or a small part of it for -quick.
func (h *hub) few(n int) int {
	if h.Quick {
		return max(n/20, 1)
	}
	return n
}

// latency: small GETs one after the other and 50 at once, and the echo of an exec session.
func (h *hub) latency() (map[string]float64, error) {
	if err := h.start(1, false); err != nil {
		return nil, err
	}
	c := h.client(0)
	ctx := context.Background()
	if _, err := repeat(h.few(300), func() error { return c.get(ctx, "/small", nil) }); err != nil { // warm up
		return nil, err
	}
	gets, err := repeat(h.few(3000), func() error { return c.get(ctx, "/small", nil) })
	if err != nil {
		return nil, err
	}
	rate, err := perSecond(c, 50, time.Duration(h.few(2000))*time.Millisecond)
	if err != nil {
		return nil, err
	}
	echoes, err := h.echoes(c)
	if err != nil {
		return nil, err
	}
	return map[string]float64{
		"get-p50": micros(quantile(gets, 0.5)), "get-p99": micros(quantile(gets, 0.99)), "rate-50": rate,
		"echo-p50": micros(quantile(echoes, 0.5)), "echo-p99": micros(quantile(echoes, 0.99)),
	}, nil
}

// echoes times 32 bytes through an upgraded stream and back.
func (h *hub) echoes(c *client) ([]time.Duration, error) {
	response, err := c.send(context.Background(), http.MethodGet, "/echo", nil, http.Header{"Connection": {"Upgrade"}, "Upgrade": {upgradeTo}})
	if err != nil {
		return nil, err
	}
	stream, ok := response.Body.(io.ReadWriteCloser)
	if !ok || response.StatusCode != http.StatusSwitchingProtocols {
		return nil, fmt.Errorf("upgrade: %s", response.Status)
	}
	defer func() { _ = stream.Close() }()
	line := make([]byte, 32)
	return repeat(h.few(3000), func() error {
		if _, err := stream.Write(line); err != nil {
			return err
		}
		_, err := io.ReadFull(stream, line)
		return err
	})
}

// bulk: large downloads, one and eight at once.
func (h *hub) bulk() (map[string]float64, error) {
	if err := h.start(1, false); err != nil {
		return nil, err
	}
	c := h.client(0)
	size := h.few(320 << 20)
	if _, err := throughput(c, 1, size/8); err != nil { // warm up
		return nil, err
	}
	one, err := throughput(c, 1, size)
	if err != nil {
		return nil, err
	}
	eight, err := throughput(c, 8, size/8)
	return map[string]float64{"bulk-1": one, "bulk-8": eight}, err
}

// throughput is MB/s of n downloads of size bytes at once.
func throughput(c *client, n, size int) (float64, error) {
	var wait sync.WaitGroup
	failed := make(chan error, n)
	begun := time.Now()
	for range n {
		wait.Go(func() {
			if err := c.get(context.Background(), "/bulk?size="+strconv.Itoa(size), nil); err != nil {
				failed <- err
			}
		})
	}
	wait.Wait()
	took := time.Since(begun)
	select {
	case err := <-failed:
		return 0, err
	default:
		return float64(n) * float64(size) / took.Seconds() / 1e6, nil
	}
}

// patient is how long a request beside others may take before it counts as blocked.
const patient = 5 * time.Second

// fairness: what small GETs and an upload suffer from others. Each stays until the hub ends, so that the last
// figure, of 300 stalled readers, is also that of memory; the bulk is taken first and ended.
func (h *hub) fairness() (map[string]float64, error) {
	if err := h.start(1, false); err != nil {
		return nil, err
	}
	c := h.client(0)
	values := map[string]float64{}
	if err := h.besideBulk(c, values); err != nil {
		return nil, err
	}
	h.besideUpload(c, values)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stalled := 0
	for _, n := range []int{1, 20, 300} {
		for ; stalled < n; stalled++ {
			opening, done := context.WithTimeout(ctx, patient)
			response, err := c.send(ctx, http.MethodGet, "/bulk?size="+strconv.Itoa(64<<20), nil, nil)
			done()
			if err != nil || opening.Err() != nil && !errors.Is(opening.Err(), context.Canceled) {
				return nil, fmt.Errorf("open stalled reader %d: %w", stalled, err)
			}
			defer func() { _ = response.Body.Close() }() // and nobody reads it
		}
		settle()
		gets := h.smallGets(c, h.few(400))
		values[fmt.Sprintf("stalled-%d-p50", n)] = millis(quantile(gets, 0.5))
		values[fmt.Sprintf("stalled-%d-p99", n)] = millis(quantile(gets, 0.99))
	}
	rss, err := residentBytes()
	values["stalled-300-rss"] = float64(rss) / 1e6
	return values, err
}

// besideBulk times small GETs beside a download that never pauses.
func (h *hub) besideBulk(c *client, values map[string]float64) error {
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() {
		for ctx.Err() == nil {
			_ = c.get(ctx, "/bulk?size="+strconv.Itoa(256<<20), nil) // ends with ctx
		}
	})
	settle()
	gets := h.smallGets(c, h.few(400))
	cancel()
	wait.Wait()
	values["beside-bulk-p50"], values["beside-bulk-p99"] = millis(quantile(gets, 0.5)), millis(quantile(gets, 0.99))
	return nil
}

// besideUpload times an upload of 4 MiB beside one that is stuck.
func (h *hub) besideUpload(c *client, values map[string]float64) {
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() {
		response, err := c.send(ctx, http.MethodPost, "/stuck", bytes.NewReader(make([]byte, 64<<20)), nil)
		if err == nil {
			_ = response.Body.Close()
		}
	})
	settle()
	within, done := context.WithTimeout(context.Background(), patient)
	begun := time.Now()
	response, err := c.send(within, http.MethodPost, "/upload", bytes.NewReader(make([]byte, 4<<20)), nil)
	if err == nil {
		_ = response.Body.Close()
	}
	values["beside-stuck-upload"] = millis(time.Since(begun))
	done()
	cancel()
	wait.Wait()
}

// settle lets what was begun reach its limits; there is nothing to wait for that all contenders would show.
func settle() { time.Sleep(300 * time.Millisecond) }

// smallGets times small GETs; one that fails took as long as it may.
func (h *hub) smallGets(c *client, n int) []time.Duration {
	took := make([]time.Duration, 0, n)
	for blocked := 0; len(took) < n && blocked < 2; {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		begun := time.Now()
		err := c.get(ctx, "/small", nil)
		cancel()
		if err != nil {
			blocked++
			took = append(took, patient)
			continue
		}
		took = append(took, time.Since(begun))
	}
	return took
}

// link: 50 ms between hub and member. Cold is a GET that finds no warm connection to the backend.
func (h *hub) link() (map[string]float64, error) {
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

// memory: what the hub needs for idle tunnels, and for one idle watch through each.
func (h *hub) memory() (map[string]float64, error) {
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
			if _, err := clients[i].send(context.Background(), http.MethodGet, "/watch", nil, nil); err != nil { //nolint:bodyclose // a watch
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

// killed: how long until a watch ends after the agent was killed.
func (h *hub) killed() (map[string]float64, error) {
	took, err := h.noticed(syscall.SIGKILL, 10*time.Second)
	return map[string]float64{"killed": millis(took)}, err
}

// hung: the same after the agent was stopped, so that its kernel still takes bytes.
func (h *hub) hung() (map[string]float64, error) {
	limit := 75 * time.Second
	if h.Quick {
		limit = time.Second
	}
	took, err := h.noticed(syscall.SIGSTOP, limit)
	return map[string]float64{"hung": took.Seconds()}, err
}

// noticed sends a signal to the agent and waits until a watch through its tunnel ends, or as long as limit.
func (h *hub) noticed(signal os.Signal, limit time.Duration) (time.Duration, error) {
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

// repeat times n calls.
func repeat(n int, do func() error) ([]time.Duration, error) {
	took := make([]time.Duration, n)
	for i := range took {
		begun := time.Now()
		if err := do(); err != nil {
			return nil, err
		}
		took[i] = time.Since(begun)
	}
	return took, nil
}

// perSecond counts small GETs of n clients at once.
func perSecond(c *client, n int, during time.Duration) (float64, error) {
	var (
		wait   sync.WaitGroup
		done   atomic.Int64
		failed atomic.Pointer[error]
	)
	begun := time.Now()
	for range n {
		wait.Go(func() {
			for time.Since(begun) < during && failed.Load() == nil {
				if err := c.get(context.Background(), "/small", nil); err != nil {
					failed.Store(&err)
				}
				done.Add(1)
			}
		})
	}
	wait.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(done.Load()) / time.Since(begun).Seconds(), nil
}

// quantile is by nearest rank.
func quantile(of []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// stock is what this process has.
type stock struct{ bytes, goroutines int }

// takeStock collects garbage first and waits until goroutines that were about to end have ended.
func takeStock() (stock, error) {
	settle()
	debug.FreeOSMemory()
	debug.FreeOSMemory() // the first leaves what pools keep for one collection
	bytes, err := residentBytes()
	return stock{bytes: bytes, goroutines: runtime.NumGoroutine()}, err
}

// residentBytes is VmRSS of this process.
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
