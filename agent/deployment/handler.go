// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"net/http"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/internal/protocol"
)

// maxBody is the maximum size of a Deployment, in bytes. The agent's own Deployment is about a twentieth of this size.
const maxBody = 128 << 10

// Handler is the http.Handler for protocol.PathDeployment.
type Handler struct {
	// Secrets accesses the Secrets in the agent's namespace.
	Secrets *kube.Secrets
	// Setup is the setup of the agent.
	Setup Setup
	Log   logr.Logger
}

// ServeHTTP responds to PUT with 202 once the Deployment is stored for the leader. If the agent does not accept the
// Deployment, ServeHTTP responds with 422 and the reason. The hub may send the Deployment to any replica, because the
// replicas share the Secret that stores it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, ok := protocol.ReadPut(w, r, "deployment", maxBody)
	if !ok {
		return
	}
	d, err := Decode(raw)
	if err == nil {
		err = Check(d, h.Setup)
	}
	if err != nil {
		h.Log.Error(err, "refused a deployment from the hub")
		http.Error(w, "the agent refuses the deployment: "+err.Error(), http.StatusUnprocessableEntity)
		return
	}
	if err := (store{h.Secrets}).want(r.Context(), digestOf(d), raw); err != nil {
		h.Log.Error(err, "cannot store the deployment from the hub")
		http.Error(w, "the deployment could not be stored: try again", http.StatusServiceUnavailable)
		return
	}
	h.Log.Info("accepted a deployment from the hub", "digest", digestOf(d))
	w.WriteHeader(http.StatusAccepted)
}
