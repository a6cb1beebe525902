// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/protocol"
)

// list returns a resource list from "name=quantity" pairs.
func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, pair := range pairs {
		name, quantity, _ := strings.Cut(pair, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(quantity)
	}
	return out
}

func show(quantities map[string]string) string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(quantities)) {
		pairs = append(pairs, name+"="+quantities[name])
	}
	return strings.Join(pairs, " ")
}

func TestQuantities(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		sum  []corev1.ResourceList
		want string
	}{
		"nothing is nothing":               {nil, ""},
		"whole CPUs":                       {[]corev1.ResourceList{list("cpu=4"), list("cpu=92")}, "cpu=96"},
		"a few milli-CPUs are exact":       {[]corev1.ResourceList{list("cpu=1250m"), list("cpu=1m")}, "cpu=1251m"},
		"many are rounded down to a tenth": {[]corev1.ResourceList{list("cpu=10"), list("cpu=199m")}, "cpu=10100m"},
		"memory from 10Gi on is in Gi": {[]corev1.ResourceList{list("memory=8140260Ki"), list("memory=8140260Ki")},
			"memory=15Gi"},
		"memory below is in Mi":       {[]corev1.ResourceList{list("memory=8140260Ki")}, "memory=7949Mi"},
		"very little memory is exact": {[]corev1.ResourceList{list("memory=1234")}, "memory=1234"},
		"storage, pods, huge pages and GPUs count": {[]corev1.ResourceList{list("ephemeral-storage=100Gi", "pods=110",
			"nvidia.com/gpu=8", "hugepages-2Mi=20Gi")}, "ephemeral-storage=100Gi hugepages-2Mi=20Gi nvidia.com/gpu=8 pods=110"},
		"zero and volume limits are left out": {[]corev1.ResourceList{list("hugepages-1Gi=0", "attachable-volumes-aws-ebs=25",
			"cpu=0")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sum amounts
			for _, l := range tc.sum {
				sum.add(amountsOf(l, maxOfNode), 1)
			}
			if got := show(sum.strings()); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			for _, l := range tc.sum {
				sum.add(amountsOf(l, maxOfNode), -1)
			}
			if got := show(sum.strings()); got != "" || len(sum.extended) > 0 {
				t.Errorf("after subtracting everything: got %s %v, want nothing", got, sum.extended)
			}
		})
	}
}

func TestPodRequests(t *testing.T) {
	t.Parallel()
	container := func(pairs ...string) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: list(pairs...)}}
	}
	sidecar := func(pairs ...string) corev1.Container {
		c := container(pairs...)
		always := corev1.ContainerRestartPolicyAlways
		c.RestartPolicy = &always
		return c
	}
	for name, tc := range map[string]struct {
		spec corev1.PodSpec
		want string
	}{
		"containers add up": {
			corev1.PodSpec{Containers: []corev1.Container{container("cpu=1"), container("cpu=2", "memory=1Gi")}},
			"cpu=3 memory=1Gi",
		},
		"the greatest init container counts, if it is greater": {
			corev1.PodSpec{InitContainers: []corev1.Container{container("cpu=2"), container("cpu=5")},
				Containers: []corev1.Container{container("cpu=3", "memory=1Gi")}}, "cpu=5 memory=1Gi",
		},
		"sidecars add to containers": {
			corev1.PodSpec{InitContainers: []corev1.Container{sidecar("cpu=1")},
				Containers: []corev1.Container{container("cpu=3")}}, "cpu=4",
		},
		"sidecars add to the init containers after them": {
			corev1.PodSpec{InitContainers: []corev1.Container{container("cpu=5"), sidecar("cpu=2"), container("cpu=4")},
				Containers: []corev1.Container{container("cpu=1")}}, "cpu=6",
		},
		"overhead comes on top": {
			corev1.PodSpec{Containers: []corev1.Container{container("cpu=1")}, Overhead: list("cpu=250m")}, "cpu=1250m",
		},
		"requests of the pod replace those of its containers": {
			corev1.PodSpec{Containers: []corev1.Container{container("cpu=1", "memory=1Gi", "nvidia.com/gpu=1")},
				Resources: &corev1.ResourceRequirements{Requests: list("cpu=5")}}, "cpu=5 memory=1Gi nvidia.com/gpu=1",
		},
		"extended resources of init containers": {
			corev1.PodSpec{InitContainers: []corev1.Container{container("nvidia.com/gpu=2")},
				Containers: []corev1.Container{container("nvidia.com/gpu=1")}}, "nvidia.com/gpu=2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := readPod(&corev1.Pod{Spec: tc.spec})
			got.pods-- // do not count the pod itself
			if got := show(got.strings()); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestDistribution(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"v1.36.3": "", "v1.36.3+k3s1": "k3s", "v1.35.1+rke2r1": "rke2", "v1.34.2-eks-113cf36": "eks",
		"v1.34.3-gke.1612000": "gke", "v1.33.1+k0s": "k0s",
	} {
		if got := versionDistribution(version); got != want {
			t.Errorf("%s: got %q, want %q", version, got, want)
		}
	}
	for want, node := range map[string]*corev1.Node{
		"":      {},
		"aks":   {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"kubernetes.azure.com/cluster": "x"}}},
		"kind":  {Spec: corev1.NodeSpec{ProviderID: "kind://docker/kind/kind-control-plane"}},
		"talos": {Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{OSImage: "Talos (v1.9.0)"}}},
	} {
		if got := nodeDistribution(node); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestHealthState(t *testing.T) {
	t.Parallel()
	good, bad := "", "etcd"
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		answers []string
		healthy bool
		message string
		since   int // number of the response since when it has this health
		again   time.Duration
	}{
		"healthy at first":                                    {[]string{good}, true, "", 0, probeInterval},
		"unhealthy at first counts at once":                   {[]string{bad}, false, "etcd", 0, probeInterval},
		"one failure is probed again soon":                    {[]string{good, bad}, true, "", 0, probeAgain},
		"a failure that passes does not count":                {[]string{good, bad, good}, true, "", 0, probeInterval},
		"two failures with a success in between do not count": {[]string{good, bad, good, bad}, true, "", 0, probeAgain},
		"two failures in a row count":                         {[]string{good, bad, bad}, false, "etcd", 2, probeInterval},
		"another message is the same bad health": {[]string{good, bad, bad, "more"}, false, "more", 2,
			probeInterval},
		"recovery counts at once":                     {[]string{bad, bad, good}, true, "", 2, probeInterval},
		"after recovery, one failure is probed again": {[]string{good, bad, bad, good, bad}, true, "", 3, probeAgain},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var v healthState
			var again time.Duration
			for i, a := range tc.answers {
				again = v.observe(a, start.Add(time.Duration(i)*time.Minute))
			}
			since := start.Add(time.Duration(tc.since) * time.Minute)
			if !v.known || v.health.Healthy != tc.healthy || v.health.Message != tc.message || !v.health.Since.Equal(since) ||
				again != tc.again {
				t.Errorf("got %+v and the next probe in %s, want others", v, again)
			}
		})
	}
}

func TestInterpret(t *testing.T) {
	t.Parallel()
	late, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	reset := func(port int) error {
		return &url.Error{Op: "Get", URL: "https://x/readyz", Err: &net.OpError{
			Op: "read", Net: "tcp", Source: &net.TCPAddr{Port: port}, Err: syscall.ECONNRESET,
		}}
	}
	for name, tc := range map[string]struct {
		ctx  context.Context
		code int
		body string
		err  error
		want string
	}{
		"200 is healthy":             {code: 200, body: "ok"},
		"403 is healthy, it serves":  {code: 403, err: errors.New("forbidden")},
		"401 says whose fault it is": {code: 401, err: errors.New("unauthorized"), want: "credentials"},
		"500 names the checks that fail": {code: 500,
			body: "[+]ping ok\n[-]etcd failed: reason withheld\n[-]poststarthook/x failed: y\n",
			want: "checks of /readyz fail: etcd, poststarthook/x"},
		"500 without a list": {code: 500, body: "<html>", want: "/readyz responds with Internal Server Error"},
		"a timeout":          {ctx: late, err: context.DeadlineExceeded, want: "does not answer within 5s"},
		"a reset connection without a port": {err: reset(40000),
			want: "the API server cannot be reached: connection reset by peer"},
		"another failure keeps its own text": {err: &url.Error{Op: "Get", URL: "https://x", Err: io.ErrUnexpectedEOF},
			want: "cannot be reached: unexpected EOF"},
		"a very long message is cut": {code: 500, body: strings.Repeat("[-]x failed\n", 1000), want: "x, x, x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.ctx == nil {
				tc.ctx = t.Context()
			}
			got := interpret(tc.ctx, tc.code, []byte(tc.body), tc.err)
			if !strings.Contains(got, tc.want) || (tc.want == "") != (got == "") || len(got) > maxMessage {
				t.Errorf("got %q", got)
			}
		})
	}
	if interpret(t.Context(), 0, nil, reset(1)) != interpret(t.Context(), 0, nil, reset(2)) {
		t.Error("the message changes with the port, so each probe would be a write on the hub")
	}
}

func FuzzJudge(f *testing.F) {
	f.Add(500, []byte("[-]etcd failed\n"))
	f.Add(http.StatusOK, []byte("ok"))
	f.Fuzz(func(t *testing.T, code int, body []byte) {
		if got := interpret(t.Context(), code, body, nil); len(got) > maxMessage {
			t.Errorf("%d bytes", len(got))
		}
	})
}

func TestSumsOfAmountsDoNotOverflow(t *testing.T) {
	t.Parallel()
	const most = "9223372036854775807"
	huge := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{"cpu", "memory", "pods", "ephemeral-storage", "example.com/gpu",
		"hugepages-2Mi"} {
		huge[name] = resource.MustParse(most)
	}
	usual := corev1.ResourceList{"cpu": resource.MustParse("16"), "memory": resource.MustParse("64Gi"),
		"pods": resource.MustParse("110")}
	const nodes = 4999 // Kubernetes supports one more node; with this number the sum of CPUs is round
	var sum amounts
	for range nodes {
		sum.add(amountsOf(huge, maxOfNode), 1)
	}
	sum.add(amountsOf(usual, maxOfNode), 1)
	report := protocol.Report{Nodes: &protocol.Nodes{Capacity: sum.strings()}}
	report.Bound()
	for name := range huge {
		amount, err := resource.ParseQuantity(report.Nodes.Capacity[string(name)])
		if least := usual[name]; err != nil || amount.Cmp(least) < 0 || amount.Sign() <= 0 {
			t.Errorf("the sum of %s: got %s and the error %v, want at least %s", name, amount.String(), err, least.String())
		}
	}
	for range nodes {
		sum.add(amountsOf(huge, maxOfNode), -1)
	}
	if got := sum.strings(); got["cpu"] != "16" || got["memory"] != "64Gi" || got["pods"] != "110" || len(got) != 3 {
		t.Errorf("without the huge nodes: got the sums %v, want those of the other node", got)
	}
}
