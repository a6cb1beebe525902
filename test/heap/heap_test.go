// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package heap_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/cloudconfig"
	"github.com/drover-dev/drover/internal/provision/inplace"
	"github.com/drover-dev/drover/internal/provision/k3s"
	"github.com/drover-dev/drover/internal/provision/remote"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/internal/request"
	"github.com/drover-dev/drover/internal/signin/oidc"
)

// ceiling is the maximum memory that a single request, or a single text of a tenant, may use while it is processed.
const ceiling = 16 << 20

// fill repeats a unit between a head and a tail until the text has the given number of bytes.
func fill(size int, head, unit, tail string) string {
	return head + strings.Repeat(unit, (size-len(head)-len(tail))/len(unit)) + tail
}

// allocated returns the number of bytes that a function allocates. The function never uses more memory than that at any
// moment.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// entry is a way to make the manager decode other users' data.
type entry struct {
	name string
	// The author of the decoded data.
	who string
	// texts are the worst known texts: as long as the entry point allows, and longer.
	texts map[string]string
	use   func(t *testing.T, text string)
}

// dense are JSON texts that need the most memory when they are decoded, between a head and a tail.
func dense(size int, head, tail string) map[string]string {
	return map[string]string{
		"empty objects": fill(size, head+"[", "{},", "{}]"+tail), "small objects": fill(size, head+"[", `{"":0},`, "{}]"+tail), "zeros": fill(size, head+"[", "0,", "0]"+tail),
		"keys": fill(size, head+"{", `"":{},`, `"":0}`+tail), "depth": fill(size, head, "[", ""), "texts": fill(size, head+"[", `"",`, `""]`+tail), "one text": fill(size, head+`"`, "x", `"`+tail),
	}
}

func yamls(size int, head string) map[string]string {
	return map[string]string{
		"aliases":        head + "a: &a [" + strings.Repeat("x,", 2000) + "]\nb: [" + strings.Repeat("*a,", 8000) + "]\n",
		"nested":         head + "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f]\n",
		"items":          fill(size, head, "- \n", ""),
		"single pairs":   fill(size, head+"a: [", "?,", "a]"),
		"empty maps":     fill(size, head+"a: [", "{},", "a]"),
		"keys":           fill(size, head+"a: {", "a,", "b}"),
		"comments":       fill(size, head, "#\n", "a: b\n"),
		"comments apart": fill(size, head, "#\n\u2028", ""),
		"a text":         fill(size, head+"a: |\n", "  x\n", ""),
	}
}

func merged(all ...map[string]string) map[string]string {
	out := map[string]string{}
	for i, texts := range all {
		for name, text := range texts {
			out[fmt.Sprintf("%s (%d)", name, i)] = text
		}
	}
	return out
}

func entries() []entry {
	const mega = 1 << 20
	machine := `{"desired":{"bootstrapConfig":{"spec":{"clusterConfiguration":`
	return []entry{
		{"bootstrap data of a machine", "a workspace editor", merged(
			yamls(mega, "#cloud-config\n"), yamls(767<<10, "#cloud-config\n"), dense(767<<10, "#cloud-config\nruncmd: ", "\n"),
			map[string]string{
				"variables": fill(767<<10, "## template: jinja\n#cloud-config\nruncmd: ['", "{{hostname}}", "']\n"),
				"unknown":   fill(767<<10, "## template: jinja\n#cloud-config\nruncmd: ['", "{{x}}", "']\n"),
				"files":     fill(767<<10, "#cloud-config\nwrite_files:\n", "- {path: /a, content: b, permissions: '0600'}\n", ""),
				"a script":  fill(767<<10, "#cloud-config\nwrite_files:\n- path: /a\n  content: |\n", "    echo a, b\n", ""),
			}), func(_ *testing.T, text string) {
			_, _ = cloudconfig.Parse([]byte(text), cloudconfig.Instance{ID: "a/b", Hostname: strings.Repeat("h", 250)})
		}},
		{"kubeconfig of a cluster to import", "a workspace editor", merged(yamls(mega, ""), yamls(250<<10, ""), dense(mega, `{"clusters":`, "}"), dense(250<<10, `{"extensions":`, "}")),
			func(_ *testing.T, text string) { _, _ = remote.Config([]byte(text), release.Private) }},
		{"configuration of a ClusterInstallation", "who may write these", dense(mega, `{"a":`, "}"), func(_ *testing.T, text string) {
			_, _ = k3s.CheckConfig(provisionv1.DistributionK3s, "config", []byte(text))
		}},
		{"plan of a host", "who may plan", merged(dense(mega, `{"instructions":`, "}"), dense(mega, `{"files":`, "}"), dense(mega, `{"probes":`, "}")), func(_ *testing.T, text string) {
			_, _ = protocol.ParseHostInstructions([]byte(text))
		}},
		{"hooks of Cluster API", "a stranger", merged(
			dense(4*mega, machine, `}}}}`), dense(mega, machine, `}}}}`), dense(mega, `{"desired":{"infrastructureMachine":{"spec":{"inPlaceUpdate":`, `}}}}`), dense(mega, `{"a":`, "}"),
		), func(t *testing.T, text string) { hook(t, text) }},
		{"the body of a request, for the audit log", "a user", dense(mega, `{"a":`, "}"), func(_ *testing.T, text string) {
			audit.Body(request.Info{Resource: "pods", Verb: "create"}, []byte(text))
		}},
		{"configuration of an OpenID provider", "the provider", merged(dense(4*mega, `{"keys":`, "}"), dense(mega, `{"keys":`, "}")), func(t *testing.T, text string) { provider(t, text, "{}") }},
		{"tokens of an OpenID provider", "the provider", merged(dense(mega, `{"a":`, "}"), map[string]string{"a form": fill(mega, "", "a&", "")}), func(t *testing.T, text string) {
			provider(t, "", text)
		}},
	}
}

func TestDecodingTheWorstTextOfEachEntryPointIsBounded(t *testing.T) {
	for _, e := range append(entries(), sent(t)...) {
		t.Run(e.name, func(t *testing.T) {
			for name, text := range e.texts {
				if n := allocated(func() { e.use(t, text) }); n > ceiling {
					t.Errorf("%s, of %s: %d KiB of text take %d KiB of memory, want %d at most", name, e.who, len(text)>>10, n>>10, ceiling>>10)
				}
			}
		})
	}
}

// hook sends a request without credentials, as anyone may.
func hook(t *testing.T, text string) {
	t.Helper()
	mux := http.NewServeMux()
	inplace.New(inplace.Hooks{}).Register(mux)
	for _, path := range []string{"canupdatemachine/can-update-machine", "discovery"} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, inplace.Path+"/hooks.runtime.cluster.x-k8s.io/v1alpha1/"+path, strings.NewReader(text))
		mux.ServeHTTP(discard{}, request)
	}
}

// discard is a ResponseWriter that discards everything.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}

// provider makes a user sign in to a provider with arbitrary responses.
func provider(t *testing.T, configuration, tokens string) {
	t.Helper()
	mux := http.NewServeMux()
	server := httptest.NewTLSServer(mux)
	defer server.Close()
	if configuration == "" {
		configuration = fmt.Sprintf(`{"issuer":%q,"authorization_endpoint":%[1]q,"token_endpoint":"%[2]s/token","jwks_uri":"%[2]s/keys"}`, server.URL, server.URL)
	}
	answer := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", http.DetectContentType([]byte(text[:1])))
			if text[0] == '{' {
				w.Header().Set("Content-Type", "application/json")
			}
			for rest := text; rest != ""; rest = rest[min(len(rest), 64<<10):] {
				_, _ = w.Write([]byte(rest[:min(len(rest), 64<<10)]))
			}
		}
	}
	mux.HandleFunc("/.well-known/openid-configuration", answer(configuration))
	mux.HandleFunc("/token", answer(tokens))
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	c, err := oidc.New(oidc.Config{URL: server.URL, ClientID: "a", ClientSecret: "b", Roots: roots})
	if err != nil {
		t.Fatal(err)
	}
	_, kept, err := c.Begin(context.Background(), "https://hub.example.com/callback", "state")
	if err == nil {
		_, err = c.Finish(context.Background(), "https://hub.example.com/callback", kept, url.Values{"code": {"c"}})
	}
	if err == nil {
		t.Error("the login succeeded, want the answers refused")
	}
}

// An agent's report is kept for each member, so it must not reference the memory of the line in which it arrived.
func TestTextThatIsCutOffIsNotKeptInMemory(t *testing.T) {
	const reports, line = 200, 64 << 10
	var kept []*protocol.Report
	held := heapOf(func() any {
		for range reports {
			long := strings.Repeat("x", line)
			raw, err := json.Marshal(protocol.Report{Version: long, AgentVersion: long, Health: protocol.Health{Message: long}})
			if err != nil {
				t.Fatal(err)
			}
			report := &protocol.Report{}
			if err := json.Unmarshal(raw, report); err != nil {
				t.Fatal(err)
			}
			report.Bound()
			kept = append(kept, report)
		}
		return kept
	})
	if most := uint64(reports * 4 << 10); held > most {
		t.Errorf("%d reports hold %d KiB, want %d at most", reports, held>>10, most>>10)
	}
}

// heapOf returns by how many bytes the heap has grown when all garbage of a function is collected.
func heapOf(f func() any) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&before)
	kept := f()
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(kept)
	return max(after.HeapAlloc, before.HeapAlloc) - before.HeapAlloc
}
