// The package's error on a machine without rdma-core.
import { listDevices, providerProblem } from '@rdmakit/verbs'

console.log(providerProblem('ibverbs'))
console.log([...new Set(listDevices().map(({ provider }) => provider))].sort().join())
