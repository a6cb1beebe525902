// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestRepeatable(t *testing.T) {
	for target, want := range map[string]bool{
		"GET /v1/k8s/api/v1/namespaces/web/pods/a":                        true,
		"HEAD /v1/k8s/api/v1/namespaces/web/pods":                         true,
		"OPTIONS /v1/k8s/apis":                                            true,
		"GET /v1/k8s/api/v1/namespaces/web/pods/proxy":                    true, // a pod with that name
		"DELETE /v1/k8s/api/v1/namespaces/web/pods/a":                     false,
		"GET /v1/k8s/api/v1/namespaces/web/pods/a/proxy/orders":           false,
		"GET /v1/k8s/api/v1/namespaces/web/services/http:a:80/proxy/":     false,
		"GET /v1/k8s/api/v1/nodes/a/proxy/run/web/a/a?cmd=date":           false,
		"HEAD /k8s/clusters/team/prod/api/v1/namespaces/web/pods/a/proxy": false,
	} {
		method, path, _ := strings.Cut(target, " ")
		if got := Repeatable(httptest.NewRequest(method, path, nil)); got != want {
			t.Errorf("%s is repeatable %t, want %t", target, got, want)
		}
	}
}

func TestIsWatch(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]bool{
		"watch=true": true, "watch=1": true, "limit=5&watch=yes": true, "": false, "watch": true, "watch=": true,
		"watch=false": false, "watch=False": false, "watch=0": false, "unwatch=1": false,
	} {
		if got := IsWatch(&http.Request{Method: http.MethodGet,
			URL: &url.URL{Path: "/api/v1/pods", RawQuery: query}}); got != want {
			t.Errorf("query %q: watch %t, want the opposite", query, got)
		}
	}
	for path, want := range map[string]bool{
		"/k8s/clusters/a/b/api/v1/watch/pods": true, "/v1/k8s/apis/apps/v1/watch/namespaces/a/deployments": true,
		"/api/v1/namespaces/a/services/b/proxy/watch/c": false, "/api/v1/namespaces/watch/pods": false,
	} {
		if got := IsWatch(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: path}}); got != want {
			t.Errorf("path %s: watch %t, want the opposite", path, got)
		}
	}
	for what, want := range map[string]bool{
		"GET /v1/k8s/api/v1/namespaces/a/services/b/proxy/download": false, "GET /api/v1/namespaces/a/pods/b:80/proxy": false,
		"GET /api/v1/nodes/b/proxy/logs": false,
		"POST /api/v1/pods":              false, "DELETE /api/v1/pods": false, "GET /k8s/clusters/pods/b/api/v1/pods": true,
		"GET /api/v1/namespaces/proxy/pods": true,
	} {
		method, path, _ := strings.Cut(what, " ")
		if got := IsWatch(&http.Request{Method: method, URL: &url.URL{Path: path, RawQuery: "watch=1"}}); got != want {
			t.Errorf("%s?watch=1: watch %t, want the opposite", what, got)
		}
	}
}

func frame(event string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(event)))) + event
}

const (
	typeJSON     = "application/json"
	typeProtobuf = "application/vnd.kubernetes.protobuf;stream=watch"
)

func TestBoundaries(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		kind, encoding string
		pieces         []string
		want           [][2]int
	}{
		"JSON ends with a newline": {typeJSON, "", []string{"{}\n"}, [][2]int{{3, 3}}},
		"JSON in two pieces ends with the second": {typeJSON + ";stream=watch", "", []string{`{"a`, "\":1}\n"},
			[][2]int{{-1, -1}, {5, 5}}},
		"several events are found":            {typeJSON, "", []string{"{}\n{}\n{"}, [][2]int{{3, 6}}},
		"protobuf ends where its length says": {typeProtobuf, "", []string{frame("abc")}, [][2]int{{7, 7}}},
		"a newline in protobuf does not end an event": {typeProtobuf, "", []string{frame("a\nc")[:6], "c"},
			[][2]int{{-1, -1}, {1, 1}}},
		"a length may come byte by byte": {typeProtobuf, "", []string{"\x00", "\x00", "\x00", "\x01", "x"},
			[][2]int{{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}, {1, 1}}},
		"an event may be empty": {typeProtobuf, "", []string{frame("") + frame("x")}, [][2]int{{4, 9}}},
		"the rest of one event and part of the next": {typeProtobuf, "", []string{frame("abc")[:5], "bc" + frame("def")[:4]},
			[][2]int{{-1, -1}, {2, 2}}},
		"in an unknown format, each piece is an event": {"application/cbor-seq", "", []string{"ab", "c"},
			[][2]int{{2, 2}, {1, 1}}},
		"compressed JSON has no lines": {typeJSON, "gzip", []string{"ab", "c\nd"}, [][2]int{{2, 2}, {3, 3}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			header := http.Header{"Content-Type": {tc.kind}}
			if tc.encoding != "" {
				header.Set("Content-Encoding", tc.encoding)
			}
			b := boundariesOf(header)
			for i, piece := range tc.pieces {
				if first, last := b.scan([]byte(piece)); [2]int{first, last} != tc.want[i] {
					t.Errorf("piece %d: %d, %d, want %v", i, first, last, tc.want[i])
				}
			}
		})
	}
}

// FuzzBoundaries checks that the ends of events do not depend on how a stream is cut into pieces.
func FuzzBoundaries(f *testing.F) {
	f.Add([]byte(frame("abc")+frame("")+frame("de")), 3, true)
	f.Add([]byte("{}\n{\"a\":1}\n{"), 2, false)
	f.Add([]byte("\xff\xff\xff\xff\x00"), 1, true)
	f.Fuzz(func(t *testing.T, stream []byte, size int, protobuf bool) {
		if size <= 0 || len(stream) > 1<<16 {
			return
		}
		kind := typeJSON
		if protobuf {
			kind = typeProtobuf
		}
		header := http.Header{"Content-Type": {kind}}
		wantFirst, wantLast := boundariesOf(header).scan(stream)
		b, gotFirst, gotLast := boundariesOf(header), -1, -1
		for at := 0; at < len(stream); at += size {
			piece := stream[at:min(at+size, len(stream))]
			first, last := b.scan(piece)
			if (first < 0) != (last < 0) || first > last || last > len(piece) || first == 0 {
				t.Fatalf("got ends %d and %d in %d bytes, want them inside the piece", first, last, len(piece))
			}
			if first >= 0 && gotFirst < 0 {
				gotFirst = at + first
			}
			if last >= 0 {
				gotLast = at + last
			}
		}
		if gotFirst != wantFirst || gotLast != wantLast {
			t.Errorf("in pieces of %d: got %d, %d; want %d, %d as in one piece", size, gotFirst, gotLast, wantFirst, wantLast)
		}
	})
}

// stream returns a response whose body the test writes.
func stream(ctx context.Context, excused func(error) bool) (*http.Response, *io.PipeWriter) {
	r, w := io.Pipe()
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {typeJSON}}, Body: r}
	EndWatchOrFailure(ctx, answer, excused)
	return answer, w
}

// outcome contains everything that was read until the end, and the error that ended it.
type outcome struct {
	text  string
	err   error
	after time.Duration
}

func follow(answer *http.Response) <-chan outcome {
	ended := make(chan outcome, 1)
	go func() {
		var text bytes.Buffer
		_, err := io.Copy(&text, answer.Body)
		_ = answer.Body.Close()
		ended <- outcome{text: text.String(), err: err}
	}()
	return ended
}

func TestEndWatch(t *testing.T) {
	t.Parallel()
	cut := errors.New("cut")
	for name, run := range map[string]func(t *testing.T, end func(), w *io.PipeWriter, ended <-chan outcome) outcome{
		"between two events, the watch ends at once": func(t *testing.T, end func(), w *io.PipeWriter,
			ended <-chan outcome) outcome {
			_, _ = io.WriteString(w, "{}\n")
			end()
			return outcome{text: "{}\n", err: nil}
		},
		"before the first event, the watch ends at once": func(t *testing.T, end func(), w *io.PipeWriter,
			ended <-chan outcome) outcome {
			end()
			return outcome{text: "", err: nil}
		},
		"within an event, the watch ends after it, without any part of the next": func(t *testing.T, end func(),
			w *io.PipeWriter, ended <-chan outcome) outcome {
			_, _ = io.WriteString(w, `{"a":`)
			end()
			synctest.Wait()
			if len(ended) > 0 {
				t.Error("the watch has ended, want it to wait for the event")
			}
			_, _ = io.WriteString(w, "1}\n{\"b\":")
			return outcome{text: "{\"a\":1}\n", err: nil}
		},
		"an event that is not completed is broken off": func(t *testing.T, end func(), w *io.PipeWriter,
			ended <-chan outcome) outcome {
			_, _ = io.WriteString(w, `{"a":`)
			end()
			return outcome{text: `{"a":`, err: ErrBrokenOff, after: watchPatience}
		},
		"a source that fails between two events ends the watch cleanly": func(t *testing.T, _ func(), w *io.PipeWriter,
			ended <-chan outcome) outcome {
			_, _ = io.WriteString(w, "{}\n")
			_ = w.CloseWithError(cut)
			return outcome{text: "{}\n", err: nil}
		},
		"a source that fails within an event is an error": func(t *testing.T, _ func(), w *io.PipeWriter,
			ended <-chan outcome) outcome {
			_, _ = io.WriteString(w, "{}\n{")
			_ = w.CloseWithError(cut)
			return outcome{text: "{}\n{", err: cut}
		},
		"a failure that is not excused is an error": func(t *testing.T, _ func(), w *io.PipeWriter,
			ended <-chan outcome) outcome {
			_, _ = io.WriteString(w, "{}\n")
			_ = w.CloseWithError(io.ErrNoProgress)
			return outcome{text: "{}\n", err: io.ErrNoProgress}
		},
		"the end of the source is the end": func(t *testing.T, _ func(), w *io.PipeWriter, ended <-chan outcome) outcome {
			_, _ = io.WriteString(w, "{}\n{")
			_ = w.Close()
			return outcome{text: "{}\n{", err: nil}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				answer, w := stream(ctx, func(err error) bool { return errors.Is(err, cut) })
				ended := follow(answer)
				synctest.Wait()
				end := func() { synctest.Wait(); cancel() }
				want, begun := run(t, end, w, ended), time.Now()
				got := <-ended
				if took := time.Since(begun); took != want.after {
					t.Errorf("the watch ended after %s, want %s", took, want.after)
				}
				if got.text != want.text || !errors.Is(got.err, want.err) {
					t.Errorf("read %q, %v; want %q, %v", got.text, got.err, want.text, want.err)
				}
				if _, err := io.WriteString(w, "{}\n"); err == nil {
					t.Error("the source is still open, want it closed")
				}
			})
		})
	}
	t.Run("a refusal ends by itself", func(t *testing.T) {
		t.Parallel()
		r, _ := io.Pipe()
		answer := &http.Response{StatusCode: http.StatusForbidden, Header: http.Header{}, Body: r}
		EndWatch(t.Context(), answer)
		if answer.Body != io.ReadCloser(r) {
			t.Error("the body of a refusal was wrapped, want it unchanged")
		}
	})
}
