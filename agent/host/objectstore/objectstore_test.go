// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objectstore_test

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-dev/drover/agent/host/objectstore"
	"github.com/drover-dev/drover/test/s3server"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func known(s *s3server.Server) objectstore.Credentials {
	return objectstore.Credentials{AccessKey: s3server.AccessKey, SecretKey: s3server.SecretKey, CA: s.CA}
}

func TestFileIsCopiedToARealBucketAndBack(t *testing.T) {
	t.Parallel()
	s := s3server.Start(t, "127.0.0.1:0")
	dir := t.TempDir()
	for _, size := range []int{0, 5 << 10, 40 << 20} { // the last in three parts
		content := bytes.Repeat([]byte("snapshot"), size/8)
		from, to := filepath.Join(dir, "from.db"), filepath.Join(dir, "to.db")
		if err := os.WriteFile(from, content, 0o600); err != nil {
			t.Fatal(err)
		}
		o := objectstore.Object{Endpoint: s.Endpoint, Bucket: s3server.Bucket, Key: fmt.Sprintf("prod/etcd/%d.db", size)}
		for range 2 { // a second copy is the same
			if err := objectstore.Put(t.Context(), o, known(s), from, 0); err != nil {
				t.Fatal(err)
			}
		}
		if stored, err := os.ReadFile(filepath.Join(s.Folder, o.Key)); err != nil || !bytes.Equal(stored, content) {
			t.Errorf("%d bytes: the bucket has %d, %v", size, len(stored), err)
		}
		if err := objectstore.Get(t.Context(), o, known(s), to); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes: %d came back, %v", size, len(got), err)
		}
		if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v: want it to be for root only", info, err)
		}
	}
}

func TestErrorsOfARealStoreHaveAdvice(t *testing.T) {
	t.Parallel()
	s := s3server.Start(t, "127.0.0.1:0")
	dir := t.TempDir()
	file := filepath.Join(dir, "f.db")
	if err := os.WriteFile(file, []byte("snapshot"), 0o600); err != nil {
		t.Fatal(err)
	}
	object := objectstore.Object{Endpoint: s.Endpoint, Bucket: s3server.Bucket, Key: "f.db"}
	if err := objectstore.Put(t.Context(), object, known(s), file, 0); err != nil {
		t.Fatal(err)
	}
	// The store's disk is damaged.
	if err := os.WriteFile(filepath.Join(s.Folder, "f.db"), []byte("Snapshot"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*objectstore.Object, *objectstore.Credentials)
		want   string
	}{
		"a bucket that is not there": {func(o *objectstore.Object, _ *objectstore.Credentials) { o.Bucket = "another" },
			"create the bucket"},
		"an object that is not there": {func(o *objectstore.Object, _ *objectstore.Credentials) { o.Key = "g.db" },
			"there is no such object"},
		"a wrong secret key": {func(_ *objectstore.Object,
			c *objectstore.Credentials) {
			c.SecretKey = "hush-hush-of-another"
		}, "check secretKey"},
		"an unknown access key": {func(_ *objectstore.Object, c *objectstore.Credentials) { c.AccessKey = "another" },
			"check accessKey"},
		"a CA that the host has not": {func(_ *objectstore.Object, c *objectstore.Credentials) { c.CA = nil },
			"put the CA of the store's certificate into the Secret"},
		"a CA that cannot be read": {func(_ *objectstore.Object, c *objectstore.Credentials) { c.CA = []byte("ca") },
			"ca.crt has no certificate"},
		"what is not what was put there": {func(*objectstore.Object, *objectstore.Credentials) {},
			"its SHA-256 differs from the SHA-256 of the file that was put there"},
	} {
		o, by := object, known(s)
		c.change(&o, &by)
		to := filepath.Join(dir, "to.db")
		err := objectstore.Get(t.Context(), o, by, to)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hush-hush") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if left, _ := filepath.Glob(to + "*"); len(left) > 0 {
			t.Errorf("%s: %q is left", name, left)
		}
	}
	object.Bucket = "another"
	if err := objectstore.Put(t.Context(), object, known(s), file, time.Minute); err == nil ||
		!strings.Contains(err.Error(), "create the bucket") {
		t.Errorf("put: %v", err)
	}
}

func TestCredentialsReachNoOtherServer(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer other.Close()
	redirects := httptest.NewTLSServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer redirects.Close()
	file := filepath.Join(t.TempDir(), "f.db")
	if err := os.WriteFile(file, []byte("snapshot"), 0o600); err != nil {
		t.Fatal(err)
	}
	by := objectstore.Credentials{AccessKey: "a", SecretKey: "hush-hush",
		CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: redirects.Certificate().Raw})}
	o := objectstore.Object{Endpoint: strings.TrimPrefix(redirects.URL, "https://"), Bucket: "snapshots", Key: "f.db"}
	for verb, err := range map[string]error{"put": objectstore.Put(t.Context(), o, by, file, time.Minute),
		"get": objectstore.Get(t.Context(), o, by, file+".got")} {
		if err == nil || !strings.Contains(err.Error(), "redirect") {
			t.Errorf("%s: %v, want it to refuse the redirect", verb, err)
		}
	}
	o.Endpoint = strings.TrimPrefix(other.URL, "http://") // a store without TLS
	if err := objectstore.Put(t.Context(), o, by, file, 0); err == nil {
		t.Error("a server without TLS was used")
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("the other server was asked %d times", n)
	}
}

// store returns a fake store, which responds with the handler.
func store(t *testing.T, handle http.HandlerFunc) (objectstore.Object, objectstore.Credentials) {
	t.Helper()
	server := httptest.NewTLSServer(handle)
	t.Cleanup(server.Close)
	return objectstore.Object{Endpoint: strings.TrimPrefix(server.URL, "https://"), Bucket: "snapshots", Key: "f.db"},
		objectstore.Credentials{AccessKey: "a", SecretKey: "hush-hush",
			CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}
}

func TestPutWaitsForAStoreThatIsUnavailableForAMoment(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "f.db")
	if err := os.WriteFile(file, []byte("snapshot"), 0o600); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	o, by := store(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if asked.Add(1) <= 6 { // one more attempt than the client makes by itself
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("ETag", `"e"`)
	})
	if err := objectstore.Put(t.Context(), o, by, file, time.Minute); err != nil {
		t.Errorf("%v after %d requests", err, asked.Load())
	}
}

func TestObjectThatCouldFillTheDiskIsNotFetched(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ length, want string }{
		"of no known size":          {"", "does not say how large"},
		"larger than what is free":  {"9000000000000000", "make room"},
		"larger than what it sends": {"300", "unexpected EOF"},
	} {
		o, by := store(t, func(w http.ResponseWriter, _ *http.Request) {
			if c.length != "" {
				w.Header().Set("Content-Length", c.length)
			}
			w.Header().Set("Last-Modified", "Tue, 24 Nov 2026 00:00:00 GMT")
			_, _ = w.Write([]byte("snapshot"))
			w.(http.Flusher).Flush()
		})
		to := filepath.Join(t.TempDir(), "to.db")
		if err := objectstore.Get(t.Context(), o, by, to); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("one %s: %v, want %q", name, err, c.want)
		}
		if left, _ := filepath.Glob(to + "*"); len(left) > 0 {
			t.Errorf("one %s: %q is left", name, left)
		}
	}
}
