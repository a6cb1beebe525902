// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/drover-dev/drover/test/testkit"
)

// raw is a request in the form in which it is sent over the wire.
type raw struct {
	method, path string
	header       string // complete lines
	body         string
}

func (q raw) String() string { return fmt.Sprintf("%s %.80s %.60q", q.method, q.path, q.header) }

// say sends a request unchanged, and returns the response and its body.
func (y way) say(t *testing.T, q raw) (*http.Response, string) {
	t.Helper()
	at, err := url.Parse(y.url)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&tls.Dialer{Config: trusting.Clone()}).DialContext(t.Context(), "tcp", at.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testkit.Patience * 30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n%s",
		q.method, at.Path+q.path, at.Host, y.token, q.header)
	if !strings.Contains(q.header, "Connection:") {
		head += "Connection: close\r\n"
	}
	if q.body != "" || q.method == http.MethodPost {
		head += fmt.Sprintf("Content-Length: %d\r\n", len(q.body))
	}
	go func() { _, _ = io.WriteString(conn, head+"\r\n"+q.body) }() // the response may arrive before everything is sent
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: q.method})
	if err != nil {
		t.Fatalf("%s: %s: %v", y.name, q, err)
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusSwitchingProtocols {
		return response, ""
	}
	body, _ := io.ReadAll(response.Body) // a refusal may end early
	return response, string(body)
}

const (
	asJSON  = "Accept: application/json\r\n"
	asTable = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io\r\n"
	content = "Content-Type: application/json\r\n"
	origin  = "Origin: https://x\r\n"
	// own is the path of the ConfigMaps that the user has rights on. pod is the path of a pod there that does not exist.
	own, pod   = "/api/v1/namespaces/%s/configmaps", "/api/v1/namespaces/%s/pods/none"
	asMetadata = "Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io\r\n"
	asOpenAPI  = "Accept: application/com.github.proto-openapi.spec.v2@v1.0+protobuf\r\n"
	aConfigMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"a":"`
	aReview    = `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview",` +
		`"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`
	upgrade = "Connection: Upgrade\r\nUpgrade: "
	// webSocket requests a WebSocket in the same way as fabric8, but without an Origin.
	webSocket = upgrade + "websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)

// alike are requests that must get the same response through every way as from the API server itself. %s is a namespace
// in which the user has rights.
var alike = []raw{
	{"GET", "/", asJSON, ""},
	{"GET", "/version", asJSON, ""},
	{"GET", "/healthz", "", ""},
	{"GET", "/livez?verbose", "", ""},
	{"GET", "/api", asJSON, ""},
	{"GET", "/apis", "Accept: application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList\r\n", ""},
	{"GET", "/api/v1", "Accept: application/yaml\r\n", ""},
	{"GET", "/api/v1", "Accept: application/vnd.kubernetes.protobuf\r\n", ""},
	{"GET", "/api/v1", "Accept: application/cbor\r\n", ""},
	{"GET", "/openapi/v3", asJSON, ""},
	{"GET", "/apis/apps/v1", "Accept: text/html\r\n", ""},
	{"GET", "/openapi/v2", asOpenAPI, ""},
	{"GET", "/openapi/v2", asJSON + "Accept-Encoding: gzip\r\n", ""},
	{"GET", own, asTable, ""},
	{"GET", own + "?limit=1", asJSON, ""},
	{"GET", own, asMetadata, ""},
	{"GET", "/api/v1/namespaces/none", asJSON, ""},
	{"GET", "/nope", asJSON, ""},
	{"GET", "/api/v1/nope", asJSON, ""},
	{"GET", "/apis/none.example/v1", asJSON, ""},
	{"HEAD", "/version", asJSON, ""},
	{"HEAD", own, asJSON, ""},
	{"OPTIONS", "/version", asJSON, ""},
	{"OPTIONS", "/api/v1/namespaces", asJSON, ""},
	{"FOO", "/version", asJSON, ""},
	{"GET", own + "?watch=1&timeoutSeconds=1", asJSON, ""},
	{"GET", "/api/v1/watch/namespaces/%s/configmaps?timeoutSeconds=1", asJSON, ""},
	{"GET", own + "?labelSelector=a%%3Db%%3Bc", asJSON, ""},
	{"GET", own + "?labelSelector=a;b", asJSON, ""},
	{"GET", own + "?a=%%zz", asJSON, ""},
	{"GET", own + "?resourceVersion=x", asJSON, ""},
	{"GET", own + "?fieldSelector=metadata.name%%3Ddefault", asJSON, ""},
	{"GET", "/api//v1/namespaces", asJSON, ""},
	{"GET", "/api/v1/namespaces/", asJSON, ""},
	{"GET", own + "/", asJSON, ""},
	{"GET", "/api/v1/namespaces/de%%66ault", asJSON, ""},
	{"GET", "/api/v1/namespaces/a%%2Fb", asJSON, ""},
	{"GET", "/api/v1/namespaces/%%C3%%A4", asJSON, ""},
	{"GET", "/metrics", "", ""},
	{"GET", "/debug/pprof/", "", ""},
	{"GET", "/logs/", "", ""},
	{"GET", "/version", "X-Big: " + strings.Repeat("y", 50_000) + "\r\n", ""},
	{"GET", "/version?x=" + strings.Repeat("y", 50_000), "", ""},
	{"POST", own, content, "not json"},
	{"POST", own, "Content-Type: text/foo\r\n", "{}"},
	{"POST", own, content, ""},
	{"POST", own + "?dryRun=All", content, aConfigMap + strings.Repeat("b", 900_000) + `"}}`},
	{"POST", own + "?dryRun=All", content, `{"a":"` + strings.Repeat("b", 4_000_000) + `"}`},
	{"PATCH", own + "/none", "Content-Type: application/merge-patch+json\r\n", "{}"},
	{"PATCH", own + "/none", "Content-Type: x/y\r\n", "{}"},
	{"POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", content,
		aReview},
	{"GET", pod + "/exec?command=true", "", ""},
	{"GET", pod + "/log", "", ""},
	{"GET", pod + ":80/proxy/", "", ""},
	{"GET", own, asJSON + upgrade + "h2c\r\nHTTP2-Settings: AAMAAABk\r\n", ""},
	{"GET", own, asJSON + webSocket, ""},
	{"GET", own, asJSON + webSocket + origin, ""},
	{"GET", own + "?watch=1", webSocket + origin, ""},
	{"GET", own + "?watch=1", webSocket + origin + "Sec-WebSocket-Protocol: base64.binary.k8s.io\r\n", ""},
	{"GET", pod + "/exec?command=true", webSocket + "Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n", ""},
	{"GET", own + "?watch=1", upgrade + "websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n" + origin, ""},
}

// varying matches text that differs between two responses of one API server, or names the user.
var varying = regexp.MustCompile(`"(resourceVersion|uid|creationTimestamp|time)":\s*"[^"]*"|hub:|` +
	`system:serviceaccount:[a-z0-9:-]+|local:alice|default "[^"]*"|timestamp: "[^"]*"|\[\+\].*\n`)

var comparedHeaders = []string{
	"Content-Type", "Content-Encoding", "Allow", "Sec-Websocket-Protocol", "Sec-Websocket-Accept",
	"X-Content-Type-Options", "Vary",
}

// TestEveryWayAnswersAsTheAPIServerDoes compares status, media type and body. docs/spec/member-api.md lists the
// intended differences.
func TestEveryWayAnswersAsTheAPIServerDoes(t *testing.T) {
	t.Parallel()
	pods := rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"pods", "pods/exec", "pods/log", "pods/proxy"}, Verbs: []string{"get",
			"create"},
	}
	r := reach(t, objects, pods)
	for _, q := range alike {
		if strings.Contains(q.path, "%") {
			q.path = strings.ReplaceAll(strings.ReplaceAll(q.path, "%s", r.first.namespace), "%%", "%")
		}
		t.Run(strings.ReplaceAll(q.String(), "/", "|"), func(t *testing.T) {
			t.Parallel()
			want, wantBody := r.directly.say(t, q)
			for _, y := range r.all() {
				got, body := y.say(t, q)
				if got.StatusCode != want.StatusCode {
					t.Errorf("%s: %s: got %s, want %s: %.300s", y.name, q, got.Status, want.Status, body)
					continue
				}
				for _, name := range comparedHeaders {
					if got, want := got.Header.Get(name), want.Header.Get(name); got != want {
						t.Errorf("%s: %s: %s is %q, want %q", y.name, q, name, got, want)
					}
				}
				body, wanted := varying.ReplaceAllString(body, ""), varying.ReplaceAllString(wantBody, "")
				if body != wanted && q.path != "/livez?verbose" { // the order of its lines varies
					t.Errorf("%s: %s: got %.300q, want %.300q", y.name, q, body, wanted)
				}
			}
		})
	}
}
