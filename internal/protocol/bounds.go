// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Limits for a report. An agent is only as trustworthy as the user who imported its cluster, and the hub stores the
// report in memory and in etcd. The report is therefore trimmed before other code reads it.
const (
	maxResources = 64
	maxFeatures  = 32
	maxLeft      = 16
	maxText      = 128
	maxMessage   = 512
)

// plainQuantity matches a Kubernetes quantity without a sign or an exponent. Agents send no other quantities. Parsing
// or comparing a quantity such as 1e-2147483648 would take a very long time. The compiled expression is large, so
// agents never compile it.
var plainQuantity = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[0-9]{1,18}(\.[0-9]{1,9})?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$`)
})

// Bound trims a report to its limits: strings to 128 bytes, messages to 512 bytes, and resources to 64. If there are
// too many resources, it keeps the most common ones first, and then others in alphabetical order. It drops resources
// whose amount is not a plain quantity. It copies data that may be shared with other reports, because an agent
// publishes the same nodes again while its previous report is being sent.
func (r *Report) Bound() {
	for _, text := range []*string{
		&r.AgentVersion, &r.ClusterUID, &r.SettingsDigest, &r.Version, &r.Distribution, &r.Profile,
	} {
		*text = Cut(*text, maxText)
	}
	r.Features = slices.Clone(r.Features[:min(len(r.Features), maxFeatures)])
	for i := range r.Features {
		r.Features[i] = Cut(r.Features[i], maxText)
	}
	for names, size := range map[*[]string]int{&r.Left: maxText, &r.Unclaimed: maxMessage} {
		*names = slices.Clone((*names)[:min(len(*names), maxLeft)])
		for i, name := range *names {
			(*names)[i] = Cut(name, size)
		}
	}
	r.DirectAuthority = Cut(r.DirectAuthority, MaxDirectAuthority)
	r.Health.Message = Cut(r.Health.Message, maxMessage)
	if r.Host != nil {
		h := *r.Host
		r.Host = &h
		h.Bound()
	}
	if r.Deployment != nil {
		d := *r.Deployment
		r.Deployment = &d
		d.Digest, d.Failed = Cut(d.Digest, maxText), Cut(d.Failed, maxText)
		d.Message, d.NotReady = Cut(d.Message, maxMessage), Cut(d.NotReady, maxMessage)
		d.NodeAgents, d.Direct = Cut(d.NodeAgents, maxMessage), Cut(d.Direct, maxMessage)
	}
	if r.Nodes != nil {
		n := *r.Nodes
		r.Nodes = &n
		n.Total, n.Ready = max(n.Total, 0), max(n.Ready, 0)
		n.Capacity, n.Allocatable = boundResources(n.Capacity), boundResources(n.Allocatable)
		n.Requested = boundResources(n.Requested)
	}
}

func boundResources(resources map[string]string) map[string]string {
	bounded := make(map[string]string, min(len(resources), maxResources))
	for _, name := range slices.SortedFunc(maps.Keys(resources), importance) {
		if len(bounded) == maxResources {
			break
		}
		if len(name) <= maxText && utf8.ValidString(name) && plainQuantity().MatchString(resources[name]) {
			bounded[name] = resources[name]
		}
	}
	return bounded
}

// importance compares resource names. Resources that exist on every node come first.
func importance(a, b string) int {
	usual := []string{"cpu", "memory", "pods", "ephemeral-storage"}
	return cmp.Or(cmp.Compare(slices.Index(usual, b), slices.Index(usual, a)), cmp.Compare(a, b))
}

// Cut returns at most the first n bytes of text. The result is valid UTF-8. If the text is longer, the result is a
// copy.
func Cut(text string, n int) string {
	if len(text) > n {
		text = strings.Clone(text[:n]) // without a copy, the rest of the text would stay in memory
	}
	return strings.ToValidUTF8(text, "")
}

// ReadPut returns the body of a PUT request. If the request has another method, or if its body is incomplete or
// larger than limit, ReadPut responds with an error and returns false. The error message refers to the body by the
// given name.
func ReadPut(w http.ResponseWriter, r *http.Request, name string, limit int64) ([]byte, bool) {
	if r.Method != http.MethodPut {
		w.Header().Set("Allow", http.MethodPut)
		http.Error(w, name+": the method must be PUT", http.StatusMethodNotAllowed)
		return nil, false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		http.Error(w, fmt.Sprintf("%s: more than %d bytes", name, limit), http.StatusRequestEntityTooLarge)
		return nil, false
	}
	if err != nil {
		http.Error(w, name+": the body was cut off", http.StatusBadRequest)
		return nil, false
	}
	return body, true
}
