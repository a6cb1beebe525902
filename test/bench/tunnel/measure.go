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
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// few returns n, or a small fraction of it for -quick.
func (h *measurer) few(n int) int {
	if h.Quick {
		return max(n/20, 1)
	}
	return n
}

// latency measures small GET requests, one after another and 50 at the same time, and the echo of an exec session.
func (h *measurer) latency() (map[string]float64, error) {
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

// echoes measures the time for 32 bytes through an upgraded stream and back.
func (h *measurer) echoes(c *client) ([]time.Duration, error) {
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

// bulk measures large downloads, one and then eight at the same time.
func (h *measurer) bulk() (map[string]float64, error) {
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

// throughput returns the throughput of n concurrent downloads of the given size, in MB/s.
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

// patient is how long a request that runs next to others may take before it counts as blocked.
const patient = 5 * time.Second

// fairness measures small GET requests and an upload next to other streams. The stalled readers are started last and
// remain, so that the memory is measured with 300 of them.
func (h *measurer) fairness() (map[string]float64, error) {
	if err := h.start(1, false); err != nil {
		return nil, err
	}
	c := h.client(0)
	values := map[string]float64{}
	h.besideBulk(c, values)
	h.besideUpload(c, values)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // ends the readers
	stalled := 0
	for _, n := range []int{1, 20, 300} {
		for ; stalled < n; stalled++ {
			if err := c.stall(ctx); err != nil {
				return nil, fmt.Errorf("open stalled reader %d: %w", stalled, err)
			}
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

// stall starts a large download and does not read it, until ctx ends.
func (c *client) stall(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(patient, cancel)
	defer late.Stop()
	response, err := c.send(ctx, http.MethodGet, "/bulk?size="+strconv.Itoa(64<<20), nil, nil)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.Join(fmt.Errorf("status %s", response.Status), response.Body.Close())
	}
	return err
}

// besideBulk measures small GET requests during a continuous download.
func (h *measurer) besideBulk(c *client, values map[string]float64) {
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
}

// besideUpload measures an upload of 4 MiB while another upload is stuck.
func (h *measurer) besideUpload(c *client, values map[string]float64) {
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

// settle waits until streams have reached their limits. It waits for a fixed time, because not all contenders show
// this.
func settle() { time.Sleep(300 * time.Millisecond) }

// smallGets measures small GET requests. A failed request counts with the full time limit.
func (h *measurer) smallGets(c *client, n int) []time.Duration {
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

// repeat measures the time of n calls.
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

// perSecond measures the rate of small GET requests by n clients at the same time.
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

// quantile uses the nearest-rank method.
func quantile(of []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
