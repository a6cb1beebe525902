// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/untrusted"
)

// Limits on the responses of API servers. A context may point to any server, for example to a member that an attacker
// controls. With these limits, a server can make the plugin use at most a few hundred megabytes of memory. Lists from
// the hub are read in pages (see paged).
const (
	maxBytes = 64 << 20
	maxNodes = 4 << 20
	maxItems = 20_000
	// maxEvent is the maximum size of a watch event, in bytes. API servers do not accept objects of this size.
	maxEvent = 4 << 20
)

// bounded limits the size of an API server's responses, because clients read a whole response into memory.
type bounded struct{ next http.RoundTripper }

// Bound limits the responses that clients with this configuration read.
func Bound(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return bounded{next} })
}

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Accept", acceptable(r.Header.Get("Accept")))
	resp, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	var body io.Reader
	switch {
	case resp.ContentLength == 0:
		return resp, nil
	case strings.HasSuffix(r.URL.Path, "/log") && kind == "text/plain" && resp.StatusCode == http.StatusOK:
		return resp, nil // is printed while it is read
	case kind != "application/json" && !strings.HasPrefix(kind, "text/") && resp.StatusCode >= http.StatusBadRequest:
		resp.Header.Set("Content-Type", "text/plain") // the client understands the status without the body
		body = http.NoBody
	case kind != "application/json" && !strings.HasPrefix(kind, "text/"):
		err = fmt.Errorf("the server responded with %s and the content type %q, which is not JSON", resp.Status, kind)
	case r.URL.Query().Get("watch") == "true" && resp.StatusCode == http.StatusOK:
		body = &events{from: bufio.NewReader(resp.Body)}
	default:
		body, err = wholeOf(resp.Body)
	}
	if err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{body, resp.Body}
	return resp, nil
}

// acceptable replaces binary formats in an Accept header with JSON, because their values cannot be counted.
func acceptable(header string) string {
	kinds := slices.DeleteFunc(strings.Split(header, ","), func(kind string) bool {
		return strings.Contains(kind, "protobuf") || strings.Contains(kind, "cbor")
	})
	return cmp.Or(strings.Join(kinds, ","), "application/json")
}

// wholeOf reads a body and checks its size.
func wholeOf(body io.Reader) (io.Reader, error) {
	raw, err := io.ReadAll(io.LimitReader(body, maxBytes+1))
	if err == nil {
		err = untrusted.Check(raw, untrusted.Bounds{Bytes: maxBytes, Nodes: maxNodes, Depth: 128, Items: maxItems})
	}
	if err != nil {
		return nil, fmt.Errorf("read the response of the server: %w", err)
	}
	return bytes.NewReader(raw), nil
}

// events reads the lines of a watch and checks the size of each line.
type events struct {
	from *bufio.Reader
	line []byte // the rest of the line that is being read
}

// Read implements io.Reader.
func (e *events) Read(into []byte) (int, error) {
	if len(e.line) == 0 {
		if err := e.next(); err != nil {
			return 0, err
		}
	}
	n := copy(into, e.line)
	e.line = e.line[n:]
	return n, nil
}

// next reads the next line, or the rest of the stream.
func (e *events) next() error {
	e.line = nil
	for {
		part, err := e.from.ReadSlice('\n')
		e.line = append(e.line, part...)
		if errors.Is(err, bufio.ErrBufferFull) && len(e.line) <= maxEvent {
			continue
		}
		if len(e.line) == 0 {
			return err
		}
		if err := untrusted.Check(e.line, untrusted.Large().WithBytes(maxEvent)); err != nil {
			return fmt.Errorf("read an event of the server: %w", err)
		}
		return nil
	}
}

const (
	// pageSize is the number of objects that the plugin requests at once.
	pageSize = 500
	// maxListed is the maximum number of objects in a list, counting all of its pages.
	maxListed = 200_000
)

// paged lists objects in pages. The limits on a response (see bounded) therefore apply to one page rather than to the
// whole list.
type paged struct{ client.WithWatch }

// List implements client.Reader.
func (p paged) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	asked := (&client.ListOptions{}).ApplyOptions(options)
	if asked.Limit > 0 || asked.Continue != "" {
		return p.WithWatch.List(ctx, list, options...)
	}
	read := 0
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		page, ok := list.DeepCopyObject().(client.ObjectList)
		if !ok {
			return nil, fmt.Errorf("%T is not a list", list)
		}
		if o.Continue == "" { // the first page, or the previous list has expired
			read = 0
		}
		one := *asked
		one.Limit, one.Continue = o.Limit, o.Continue
		if err := p.WithWatch.List(ctx, page, &one); err != nil {
			return nil, err
		}
		if read += meta.LenList(page); read > maxListed {
			return nil, fmt.Errorf("the server has more than %d of these objects: select fewer, for example one workspace",
				maxListed)
		}
		return page, nil
	})
	pages.PageSize = pageSize
	all, _, err := pages.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	items, err := meta.ExtractList(all)
	if err != nil {
		return err
	}
	if whole, err := meta.ListAccessor(all); err == nil {
		list.SetResourceVersion(whole.GetResourceVersion())
	}
	return meta.SetList(list, items)
}
