// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
)

// benchHub and benchStreams are the variables that tell the process of the clients the address and the number of
// streams.
const benchHub, benchStreams = "DROVER_BENCH_HUB", "DROVER_BENCH_STREAMS"

// load is what the process that serves streams has to do: streams, each of another user, of some kinds, while Clusters
// change.
type load struct {
	streams, clusters int
	kinds             []string
	plain             bool          // whether the streams have no TLS
	idle              time.Duration // how long nothing changes
	changes           int           // how many Clusters then change per second, for benchFor
}

const benchFor = 20 * time.Second

// BenchmarkStreams reports the cost of a stream for the process that serves it: CPU time to open it, memory and
// goroutines after all objects were sent, CPU time and reviews of rights while nothing changes, and the CPU time of one
// change for each stream. The clients run in another process. Run it with -benchtime 1x.
func BenchmarkStreams(b *testing.B) {
	if hub := os.Getenv(benchHub); hub != "" {
		readAll(b, hub)
		return
	}
	b.Run("Clusters", load{streams: 1000, clusters: 2000, kinds: []string{"clusters"}, changes: 10}.measure)
}

// BenchmarkPages is BenchmarkStreams for pages that show the overview of a fleet.
func BenchmarkPages(b *testing.B) {
	for _, clusters := range []int{1000, 10_000} {
		for _, plain := range []bool{false, true} {
			pages := load{streams: 200, clusters: clusters, plain: plain, idle: time.Minute, changes: 10}
			for _, k := range subscribable() {
				pages.kinds = append(pages.kinds, k.Resource)
			}
			b.Run(fmt.Sprintf("clusters=%d/plain=%t", clusters, plain), pages.measure)
		}
	}
}

func (l load) measure(b *testing.B) {
	var reviews atomic.Int64
	s := New(Options{
		Authenticate: func(r *http.Request) (identity.Identity, error) {
			user := r.Header.Get("Authorization")
			return identity.Identity{User: user, Hub: authenticationv1.UserInfo{Username: user}}, nil
		},
		Watch: func(context.Context, identity.Identity, string, string) (bool, error) {
			reviews.Add(1)
			return true, nil
		},
		Unmanaged: func(context.Context, identity.Identity) bool { return false },
		Now:       time.Now,
	})
	for _, f := range s.feeds {
		f.started = true
	}
	version := 0
	change := func(i int) {
		version++
		o := cluster("team", fmt.Sprint("c", i), version)
		o.Status = v1.ClusterStatus{Version: "v1.36.3", Conditions: []metav1.Condition{
			{Type: "Ready", Status: "True", Reason: "Ready", Message: "the cluster is connected"},
			{Type: "Connected", Status: "True", Reason: "Connected"}, {Type: "Registered", Status: "True", Reason: "Registered"},
		}}
		s.feeds["clusters"].see(s, o, false)
	}
	for i := range l.clusters {
		change(i)
	}
	mux := http.NewServeMux()
	s.Register(b.Context(), mux)
	listen := httptest.NewTLSServer
	if l.plain {
		listen = httptest.NewServer
	}
	listener := listen(mux)
	defer listener.Close()
	goroutines, memory, before := runtime.NumGoroutine(), held(), cpu(b)
	stop := l.startClients(b, listener.URL)
	defer stop()
	each := float64(l.streams)
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/1000/each, "ms-CPU/open")
	b.ReportMetric((float64(held())-float64(memory))/each/1000, "kB/stream")
	b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/each, "goroutines/stream")
	if l.idle > 0 {
		asked, before := reviews.Load(), cpu(b)
		time.Sleep(l.idle)
		b.ReportMetric(float64((cpu(b)-before).Microseconds())/l.idle.Seconds()/each, "µs-CPU/idle-s/stream")
		b.ReportMetric(float64(reviews.Load()-asked)/l.idle.Seconds()/each, "reviews/s/stream")
	}
	begun, before := time.Now(), cpu(b)
	changes := 0
	for tick := time.NewTicker(time.Second / time.Duration(l.changes)); time.Since(begun) < benchFor; changes++ {
		<-tick.C
		change(changes % l.clusters)
	}
	used := cpu(b) - before
	b.ReportMetric(float64(used.Microseconds())/float64(changes)/each, "µs-CPU/change/stream")
	b.ReportMetric(used.Seconds()/time.Since(begun).Seconds()*100, "%-of-a-core")
}

// startClients starts the process of the clients, and waits until all of them have received all objects.
func (l load) startClients(b *testing.B, hub string) (stop func()) {
	b.Helper()
	clients := exec.CommandContext(b.Context(), os.Args[0], "-test.run", "^$", "-test.bench", "BenchmarkStreams",
		"-test.benchtime", "1x")
	address := hub + Path + "?" + url.Values{"kind": l.kinds}.Encode()
	clients.Env = append(os.Environ(), benchHub+"="+address, benchStreams+"="+strconv.Itoa(l.streams))
	said, err := clients.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := clients.Start(); err != nil {
		b.Fatal(err)
	}
	for lines := bufio.NewScanner(said); lines.Scan() && lines.Text() != "ready"; {
	}
	return func() { _ = clients.Process.Kill(); _ = clients.Wait() }
}

// held returns the memory of objects and stacks, in bytes.
func held() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// readAll opens all streams, reports when each of them has received its first bookmark, and reads until the process is
// killed.
func readAll(b *testing.B, hub string) {
	at, err := url.Parse(hub)
	if err != nil {
		b.Fatal(err)
	}
	streams, err := strconv.Atoi(os.Getenv(benchStreams))
	if err != nil {
		b.Fatal(err)
	}
	ready := make(chan struct{})
	for i := range streams {
		go func() {
			conn, err := dial(at)
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: "+
				"websocket\r\nSec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\nAuthorization: %s\r\n\r\n",
				at.RequestURI(), at.Host, "AQIDBAUGBwgJCgsMDQ4PEA==", strconv.Itoa(i))
			read, seen := make([]byte, 64<<10), ""
			answer := sync.OnceFunc(func() { go pong(conn) })
			for !strings.Contains(seen, `"resume"`) {
				n, err := conn.Read(read)
				if err != nil {
					b.Error(err)
					return
				}
				answer() // after the response to the upgrade
				seen = seen[max(0, len(seen)-16):] + string(read[:n])
			}
			ready <- struct{}{}
			_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, conn, read)
		}()
	}
	for range streams {
		<-ready
	}
	_, _ = fmt.Fprintln(os.Stdout, "ready")
	select {}
}

// pong answers pings, without reading them.
func pong(conn io.Writer) {
	for range time.Tick(pingEvery) {
		_, _ = conn.Write([]byte{0x8a, 0x80, 0, 0, 0, 0}) // an empty frame with an empty mask
	}
}

func dial(at *url.URL) (net.Conn, error) {
	if at.Scheme == "http" {
		return net.Dial("tcp", at.Host)
	}
	return tls.Dial("tcp", at.Host, &tls.Config{InsecureSkipVerify: true}) // the server is this test
}
