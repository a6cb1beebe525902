// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/chromium"
	"github.com/drover-dev/drover/test/testkit"
)

const clustersPath = "/k8s/local/apis/cluster.drover.dev/v1/namespaces/team/clusters/"

// respond lets the hub answer requests that match a pattern, and returns a function that returns these requests.
func (f *fleet) respond(pattern string, handle func(r *http.Request) (int, any)) func() []string {
	var mu sync.Mutex
	var got []string
	f.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		got = append(got, strings.TrimSpace(r.URL.RequestURI()+" "+string(body)))
		mu.Unlock()
		code, value := handle(r)
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(value)
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(slices.Values(got))
	}
}

// replies returns the same answer to each request.
func replies(code int, value any) func(*http.Request) (int, any) {
	return func(*http.Request) (int, any) { return code, value }
}

// receives waits until the hub has got exactly these requests.
func receives(t *testing.T, requests func() []string, want ...string) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func(context.Context) error {
		if got := requests(); !slices.Equal(got, want) {
			return fmt.Errorf("the hub got %q, want %q", got, want)
		}
		return nil
	})
}

// unseen fails if a screen reader finds an element.
func unseen(t *testing.T, p *chromium.Page, names ...string) {
	t.Helper()
	all, err := p.Elements()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		for _, name := range names {
			if strings.HasPrefix(e.Role+": "+e.Name, name) {
				t.Errorf("the page shows %q, want it absent", e.Role+": "+e.Name)
			}
		}
	}
}

func warning(name, reason, message string, ago time.Duration) map[string]any {
	at := time.Now().Add(-ago).UTC().Format(time.RFC3339)
	return map[string]any{"type": "Warning", "reason": reason, "message": message, "eventTime": at,
		"reportingComponent": "of-" + name,
		"metadata":           map[string]any{"namespace": "team", "name": name + reason, "creationTimestamp": at},
		"involvedObject":     map[string]any{"kind": "Cluster", "namespace": "team", "name": name}}
}

// expiring returns a certificate in PEM that expires after a time.
func expiring(t *testing.T, after time.Duration) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: time.Now().Add(after)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestTheOverviewShowsWarningsAndExpiringCertificates(t *testing.T) {
	chromium.Find(t)
	f := newFleet(t, 3)
	events := f.respond("GET /k8s/local/api/v1/events", replies(200, map[string]any{
		"metadata": map[string]any{"continue": "more"}, "items": []any{
			warning("c0000", "OldNews", "long ago", 3*time.Hour),
			warning("c0001", "IdentityMismatch", "<img src=x> came with \u202eanother key", 2*time.Minute)}}))
	p := chromium.Open(t, true)
	signIn(t, p, f.url, "secret")
	sees(t, p, "heading: Recent warnings", "StaticText: <img src=x> came with ⟨202E⟩another key")
	eventually(t, p, `[...document.querySelectorAll(".event-reason")].map(e => e.textContent).join()`,
		"Identity mismatch,Old news")
	sees(t, p, "StaticText: by of-c0001", "StaticText: Anyone who may create events can write one",
		"StaticText:  events at once and has more, so newer ones may be missing.")
	receives(t, events, "/k8s/local/api/v1/events?limit=500&fieldSelector=involvedObject.kind%3DCluster%2Ctype%3DWarning")
	for name, after := range map[string]time.Duration{"c0000": 10 * 24 * time.Hour, "c0001": 300 * 24 * time.Hour} {
		message := cluster(name, "True", "Connected", "")
		message["object"].(map[string]any)["status"].(map[string]any)["directAuthority"] = expiring(t, after+time.Hour)
		f.send(message)
	}
	sees(t, p, "link: c0000 team The certificate for direct access expires in 10 d")
	eventually(t, p, `document.querySelector("main").textContent.split("The certificate").length - 1`, 1)
	click(t, p, "[title='Refresh']")
	testkit.Eventually(t, 10*time.Second, func(context.Context) error {
		if n := len(events()); n != 2 {
			return fmt.Errorf("the hub got %d requests for events, want 2", n)
		}
		return nil
	})
}

func TestTheOverviewOmitsWarningsForUsersWhoMayNotListEvents(t *testing.T) {
	chromium.Find(t)
	f := newFleet(t, 3)
	f.denied = map[string]bool{"list": true}
	p := chromium.Open(t, true)
	signIn(t, p, f.url, "secret")
	sees(t, p, "heading: Overview", "heading: Needs attention", "StaticText: Live")
	answered(t, p)
	unseen(t, p, "heading: Recent warnings")
	eventually(t, p, `[...document.querySelectorAll("[role=alert]")].map(e => e.textContent).join()`, "")
}

func TestNodesAreFetchedOnDemand(t *testing.T) {
	chromium.Find(t)
	f := newFleet(t, 3)
	var mu sync.Mutex
	code := http.StatusBadGateway
	node := func(name, ready string, cordoned bool) map[string]any {
		return map[string]any{"metadata": map[string]any{"name": name,
			"labels": map[string]any{"node-role.kubernetes.io/control-plane": ""}},
			"spec": map[string]any{"unschedulable": cordoned},
			"status": map[string]any{"allocatable": map[string]any{"cpu": "16", "memory": "64Gi"},
				"nodeInfo":   map[string]any{"kubeletVersion": "v1.36.3"},
				"conditions": []any{map[string]any{"type": "Ready", "status": ready}}}}
	}
	nodes := f.respond("GET /k8s/clusters/team/c0001/api/v1/nodes", func(*http.Request) (int, any) {
		mu.Lock()
		defer mu.Unlock()
		return code, map[string]any{"message": "no agent", "items": []any{node("a", "True", false), node("b", "False", false),
			node("c", "True", true)}}
	})
	f.respond("POST /k8s/clusters/team/c0001/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
		replies(201, map[string]any{"status": map[string]any{"allowed": true}}))
	p := chromium.Open(t, true)
	signIn(t, p, f.url, "secret")
	at(p, "#/clusters/team/c0001")
	sees(t, p, "heading: c0001", "link: 3 of 3 ready")
	receives(t, nodes)
	click(t, p, ".tabs a:nth-child(2)")
	sees(t, p, "alert", "StaticText: no agent", "button: Try again")
	mu.Lock()
	code = http.StatusOK
	mu.Unlock()
	click(t, p, ".problem button")
	sees(t, p, "table: Nodes", "cell: Not ready", "cell: Cordoned", "cell: 64 GiB", "cell: control-plane")
	eventually(t, p, `[...document.querySelectorAll("main tbody th")].map(e => e.textContent).join()`, "b,c,a")
	if n := len(nodes()); n != 2 {
		t.Errorf("the hub got %d requests for nodes, want 2: one per click", n)
	}
}

func TestLabelsOfManyClustersAreEditedByKeyboard(t *testing.T) {
	chromium.Find(t)
	f := newFleet(t, 3)
	var mu sync.Mutex
	code := http.StatusConflict
	patches := f.respond("PATCH "+clustersPath+"{name}", func(r *http.Request) (int, any) {
		mu.Lock()
		defer mu.Unlock()
		if r.Header.Get("Content-Type") != "application/merge-patch+json" {
			return http.StatusUnsupportedMediaType, nil
		}
		if r.PathValue("name") == "c0001" {
			return code, map[string]any{"message": "changed by someone else"}
		}
		return http.StatusOK, nil
	})
	p := chromium.Open(t, true)
	signIn(t, p, f.url, "secret")
	at(p, "#/clusters")
	sees(t, p, "checkbox: Select c0002")
	f.send(map[string]any{"type": "CHANGED", "kind": "projects", "object": map[string]any{
		"metadata": map[string]any{"namespace": "team", "name": "shop"},
		"spec":     map[string]any{"clusterSelector": map[string]any{"matchLabels": map[string]any{"tier": "edge"}}}}})
	for range 2 { // the first and the second row
		p.Evaluate(`[...document.querySelectorAll("main tbody [type=checkbox]")].find(e => !e.checked).focus()`, nil)
		for _, kind := range []string{"keyDown", "keyUp"} {
			p.Call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": " ", "code": "Space", "text": " ",
				"windowsVirtualKeyCode": 32}, nil)
		}
		p.Evaluate(painted, nil)
	}
	sees(t, p, "status", "StaticText: 2 clusters", "StaticText:  selected", "button: Edit labels")
	p.Evaluate(`[...document.querySelectorAll(".selection button")][0].focus()`, nil)
	p.Press("Enter")
	sees(t, p, "dialog: Labels of 2 clusters", "button: Remove env", "combobox: Label")
	p.Type("tier")
	p.Press("Tab")
	p.Type("edge")
	sees(t, p, "listitem", "StaticText: project shop", "button: Change 2 clusters")
	p.Press("Enter")
	sees(t, p, "alert", "StaticText: team/c0001 was not changed.", "StaticText: changed by someone else")
	patch := func(name string) string {
		return clustersPath + name + `?fieldManager=drover-page {"metadata":{"uid":"uid-of-` + name +
			`","labels":{"tier":"edge"}}}`
	}
	receives(t, patches, patch("c0000"), patch("c0001"))
	message := cluster("c0000", "True", "Ready", "")
	labels := message["object"].(map[string]any)["metadata"].(map[string]any)["labels"].(map[string]any)
	labels["tier"] = "edge"
	f.send(message)
	mu.Lock()
	code = http.StatusOK
	mu.Unlock()
	sees(t, p, "button: Change 1 cluster")
	p.Press("Enter") // the field still has the focus
	eventually(t, p, `document.querySelectorAll("dialog, .selection").length`, 0)
	receives(t, patches, patch("c0000"), patch("c0001"), patch("c0001"))
}

func TestLabelsAreEditedOnlyWithTheRightToUpdateThem(t *testing.T) {
	chromium.Find(t)
	f := newFleet(t, 3)
	f.denied = map[string]bool{"update": true} // of clusters/labels
	p := chromium.Open(t, true)
	signIn(t, p, f.url, "secret")
	at(p, "#/clusters")
	sees(t, p, "checkbox: Select c0002")
	click(t, p, "main tbody [type=checkbox]")
	sees(t, p, "button: Copy names")
	answered(t, p)
	unseen(t, p, "button: Edit labels")
	at(p, "#/clusters/team/c0001")
	sees(t, p, "heading: Labels", "button: Delete the cluster")
	answered(t, p)
	unseen(t, p, "button: Edit labels")
}

func TestDeletionSaysWhatItDoes(t *testing.T) {
	f, p := signedIn(t, 3)
	removed := f.respond("DELETE "+clustersPath+"{name}", replies(200, nil))
	patches := f.respond("PATCH "+clustersPath+"{name}", replies(200, nil))
	f.send(map[string]any{"type": "CHANGED", "kind": "clusterroletemplatebindings", "object": map[string]any{
		"metadata": map[string]any{"namespace": "team", "name": "anna"}, "spec": map[string]any{"clusterName": "c0001",
			"roleTemplateName": "viewer", "subject": map[string]any{"kind": "User", "name": "anna"}}}})
	guarded := cluster("c0001", "True", "Ready", "")
	guarded["object"].(map[string]any)["spec"] = map[string]any{"deletionProtection": true}
	f.send(guarded)
	at(p, "#/clusters/team/c0001")
	sees(t, p, "heading: c0001", "button: Delete the cluster", "StaticText: protected")
	remove := func() { click(t, p, "[title=Delete]") }
	remove()
	sees(t, p, "dialog: c0001 is protected")
	click(t, p, "dialog .danger")
	receives(t, patches, clustersPath+`c0001?fieldManager=drover-page `+
		`{"metadata":{"uid":"uid-of-c0001"},"spec":{"deletionProtection":false}}`)
	eventually(t, p, `document.querySelectorAll("dialog").length`, 0)
	free := cluster("c0001", "True", "Ready", "")
	f.send(free)
	eventually(t, p, `document.querySelector("main").textContent.includes("protected")`, false)
	remove()
	sees(t, p, "dialog: Delete the cluster c0001?", "StaticText: 1 binding")
	p.Type("team/c0001")
	p.Press("Enter")
	receives(t, removed,
		clustersPath+`c0001 {"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"uid-of-c0001"}}`)
	eventually(t, p, `location.hash`, "#/clusters")
}

func TestAnExpiredImportMakesANewCommand(t *testing.T) {
	f, p := signedIn(t, 3)
	f.respond("GET /k8s/local/api/v1/namespaces/team/events", replies(200, map[string]any{"items": []any{
		warning("c0001", "IdentityMismatch", "another cluster came", time.Minute)}}))
	removed := f.respond("DELETE /k8s/local/api/v1/namespaces/team/secrets/c0001-registration", replies(200, nil))
	expired := cluster("c0001", "False", "TokenExpired", "No agent joined within 24 h.")
	status := expired["object"].(map[string]any)["status"].(map[string]any)
	status["conditions"].([]any)[1] = map[string]any{"type": "Registered", "status": "False",
		"reason": "TokenExpired", "message": "No agent joined within 24 h."}
	f.send(expired)
	at(p, "#/clusters/team/c0001")
	sees(t, p, "heading: Connect this cluster", "StaticText: Import expired", "StaticText: another cluster came",
		"button: Make a new command")
	const path = "/k8s/local/api/v1/namespaces/team/secrets/c0001-registration"
	var owner atomic.Value
	owner.Store("uid-of-another")
	f.respond("GET "+path, func(*http.Request) (int, any) {
		return http.StatusOK, map[string]any{"metadata": map[string]any{"uid": "uid-of-the-secret",
			"labels":          map[string]any{v1.LabelCluster: "c0001", v1.LabelSecretKind: v1.SecretKindRegistration},
			"ownerReferences": []any{map[string]any{"uid": owner.Load()}}}}
	})
	renew := `[...document.querySelectorAll("main .note button")].at(-1).click()`
	p.Evaluate(renew, nil)
	sees(t, p, "StaticText: The Secret c0001-registration was not created by the hub: it does not belong to this cluster.")
	owner.Store("uid-of-c0001")
	p.Evaluate(renew, nil)
	receives(t, removed, path+
		` {"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"uid-of-the-secret"}}`)
}

func TestTheKubeconfigWorksWithKubectl(t *testing.T) {
	f, p := signedIn(t, 3)
	saved := func(hash, click string) *clientcmdapi.Config {
		t.Helper()
		var text string
		p.Evaluate(`new Promise(done => {
			URL.createObjectURL = (blob) => { blob.text().then(done); return "`+hash+`"; };
			`+click+`;
		})`, &text)
		config, err := clientcmd.Load([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return config
	}
	at(p, "#/clusters")
	sees(t, p, "checkbox: Select all")
	p.Evaluate(`document.querySelector("[aria-label='Select all']").click(); `+painted, nil)
	all := saved("#/clusters", `[...document.querySelectorAll(".selection button")]
		.find(b => b.textContent === "Kubeconfig").click()`)
	if names := slices.Sorted(maps.Keys(all.Contexts)); len(names) != 3 || all.CurrentContext != names[0] ||
		!strings.HasPrefix(names[0], "team/c0000@") || all.Clusters[names[2]].Server != f.url+"/k8s/clusters/team/c0002" {
		t.Errorf("the kubeconfig of all clusters has the contexts %q, want three, and the first as the current one", names)
	}
	at(p, "#/clusters/team/c0001/connect")
	sees(t, p, "button: Download the kubeconfig")
	config := saved("#/clusters/team/c0001/connect", `document.querySelector("main .card p button").click()`)
	current := config.Contexts[config.CurrentContext]
	if got, want := config.Clusters[current.Cluster].Server, f.url+"/k8s/clusters/team/c0001"; got != want {
		t.Errorf("the server is %q, want %q", got, want)
	}
	exec := config.AuthInfos[current.AuthInfo].Exec
	if got, want := append([]string{exec.Command}, exec.Args...),
		[]string{"kubectl-drover", "get-token", "--hub", f.url}; !slices.Equal(got, want) {
		t.Errorf("kubectl runs %q, want %q", got, want)
	}
}
