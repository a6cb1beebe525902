// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// pages is a server with a number of Clusters that it lists in pages.
type pages struct {
	client.WithWatch
	total, largest int
}

func (p *pages) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	asked := (&client.ListOptions{}).ApplyOptions(options)
	from, _ := strconv.Atoi(asked.Continue)
	to := p.total
	if asked.Limit > 0 {
		to = min(to, from+int(asked.Limit))
	}
	clusters := list.(*v1.ClusterList)
	for i := from; i < to; i++ {
		clusters.Items = append(clusters.Items, v1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}})
	}
	clusters.ResourceVersion = "7"
	if to < p.total {
		clusters.Continue = strconv.Itoa(to)
	}
	p.largest = max(p.largest, to-from)
	return nil
}

func TestListsOfTheHubAreReadInPages(t *testing.T) {
	t.Parallel()
	for _, total := range []int{0, 1, pageSize, 10*pageSize + 1} {
		server, found := &pages{total: total}, v1.ClusterList{}
		if err := (paged{server}).List(t.Context(), &found); err != nil {
			t.Fatalf("%d Clusters: %v", total, err)
		}
		if len(found.Items) != total || found.ResourceVersion != "7" || found.Continue != "" {
			t.Errorf("got %d Clusters at version %q, continue %q, want %d at version 7", len(found.Items), found.ResourceVersion,
				found.Continue, total)
		}
		if total > 0 && found.Items[total-1].Name != fmt.Sprint(total-1) {
			t.Errorf("got %s as the last Cluster of %d", found.Items[total-1].Name, total)
		}
		if server.largest > pageSize {
			t.Errorf("got a page of %d Clusters, want at most %d", server.largest, pageSize)
		}
	}
	err := paged{&pages{total: maxListed + 1}}.List(t.Context(), &v1.ClusterList{})
	if err == nil || !strings.Contains(err.Error(), "select fewer") {
		t.Errorf("got %v for more than %d Clusters, want an error that says to select fewer", err, maxListed)
	}
	few := v1.ClusterList{}
	if err := (paged{&pages{total: 10}}).List(t.Context(), &few, client.Limit(3)); err != nil || len(few.Items) != 3 {
		t.Errorf("got %d Clusters and %v, want 3, because the caller set the limit", len(few.Items), err)
	}
}
