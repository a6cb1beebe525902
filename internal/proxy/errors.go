// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/identity/refusal"
)

// patience is how long after the loss of a member clients are asked to try again by themselves: a restarted agent or
// manager is back by then. Later kubectl shows at once what is wrong.
const patience = time.Minute

// discoveryPatience is patience for the two paths that clients ask before anything else. A kubectl with an empty cache
// asks them five times, and each of those ten times more when it is asked to try again: it would print what is wrong
// after 50 s.
const discoveryPatience = 10 * time.Second

// memberError says in a Status why a member does not answer what was asked of it.
func memberError(c *call, err error) error {
	cluster, path := c.target.cluster, c.info.Path
	var (
		refused *refusal.Error
		gone    *NotConnectedError
	)
	switch {
	case errors.As(err, &refused), errors.Is(err, context.Canceled), errors.Is(err, errNoIdentity):
		return err
	case errors.Is(err, ErrUnknownCluster):
		return refusal.New(http.StatusNotFound, metav1.StatusReasonNotFound,
			fmt.Sprintf("cluster %q not found; kubectl get clusters -n %s on the hub lists what there is", cluster, cluster.Namespace)).About(cluster)
	case errors.As(err, &gone):
		return notConnected(cluster, path, gone.LastSeen, time.Now()).Because(err)
	case errors.Is(err, ErrHeaderTooLarge):
		return refusal.New(http.StatusRequestHeaderFieldsTooLarge, refusal.ReasonHeaderTooLarge, fmt.Sprintf(
			"user %q is in %d groups: with a header for each, the request is larger than the agent of cluster %q takes; "+
				"put the user in fewer groups", c.identity.User, len(c.identity.Groups), cluster)).About(cluster)
	case isTimeout(err):
		return refusal.New(http.StatusGatewayTimeout, refusal.ReasonGatewayTimeout,
			fmt.Sprintf("cluster %q did not answer in time; try again", cluster)).Because(err).About(cluster)
	}
	return refusal.New(http.StatusBadGateway, refusal.ReasonBadGateway,
		fmt.Sprintf("the connection to cluster %q broke before it answered; it may have done what was asked, look before you try again", cluster)).
		Because(err).About(cluster)
}

// notConnected says since when a member is gone and where to look.
func notConnected(cluster types.NamespacedName, path string, lastSeen, now time.Time) *refusal.Error {
	seen := "it is not known when it was last seen"
	if !lastSeen.IsZero() {
		seen = fmt.Sprintf("last seen %s, %s ago", lastSeen.UTC().Format(time.RFC3339), now.Sub(lastSeen).Round(time.Second))
	}
	e := refusal.Unavailable(fmt.Sprintf("cluster %q is not connected to the hub: %s; kubectl describe cluster %s -n %s on the hub says why",
		cluster, seen, cluster.Name, cluster.Namespace)).About(cluster)
	awaited := lastSeen.IsZero() || now.Sub(lastSeen) <= patience
	if isDiscovery(path) {
		awaited = !lastSeen.IsZero() && now.Sub(lastSeen) <= discoveryPatience
	}
	if !awaited {
		return e.RetryAt(now.Add(patience))
	}
	return e
}

// hubError says in a Status why the hub's own API server does not answer.
func hubError(err error) error {
	var refused *refusal.Error
	switch {
	case errors.As(err, &refused), errors.Is(err, context.Canceled), errors.Is(err, errNoIdentity):
		return err
	case isTimeout(err):
		return refusal.New(http.StatusGatewayTimeout, refusal.ReasonGatewayTimeout,
			"the hub's API server did not answer in time; try again").Because(err)
	}
	return refusal.New(http.StatusBadGateway, refusal.ReasonBadGateway,
		"the connection to the hub's API server broke before it answered; it may have done what was asked, look before you try again").Because(err)
}
