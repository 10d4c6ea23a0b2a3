import { copyOfBytes, integerInRange } from '../base/arguments.js'
import { calling, UsageError } from '../base/errors.js'
import { Resource } from '../base/resource.js'
import type { ProtectionDomain } from '../device/protection-domain.js'
import { type NativeAddressVector, native } from '../native.js'

/** The way to a port of the fabric (ibv_ah_attr): by GID on RoCE, by LID within an InfiniBand subnet. */
export interface AddressVector {
  /** the 16 bytes of the destination's GID, of `Context.queryGids` there */
  readonly gid?: Uint8Array | undefined
  /** which entry of this port's GID table is the source, default 0 */
  readonly sourceGidIndex?: number | undefined
  /** routers on the way at most, default 64 */
  readonly hopLimit?: number | undefined
  /** 0…255, default 0 */
  readonly trafficClass?: number | undefined
  /** 20 bits, default 0 */
  readonly flowLabel?: number | undefined
  /** the destination's local identifier, default 0 (RoCE has none) */
  readonly lid?: number | undefined
  /** 0…15, default 0 */
  readonly serviceLevel?: number | undefined
  /** the local port, default 1 */
  readonly portNumber?: number | undefined
}

/** @internal */
export function nativeAddressVector(vector: AddressVector): NativeAddressVector {
  const { lid = 0 } = vector
  const gid = vector.gid === undefined ? undefined : copyOfBytes('gid', vector.gid)
  if (gid !== undefined && gid.byteLength !== 16)
    throw new UsageError(`a GID has 16 bytes, not ${gid.byteLength}`)
  if (gid === undefined && lid === 0) throw new UsageError('an address vector needs a GID or a LID')
  return {
    portNumber: integerInRange('a port number', vector.portNumber ?? 1, 1, 0xff),
    serviceLevel: integerInRange('a service level', vector.serviceLevel ?? 0, 0, 15),
    lid: integerInRange('a LID', lid, 0, 0xffff),
    ...(gid === undefined ? {} : { gid }),
    sourceGidIndex: integerInRange('the index of a GID', vector.sourceGidIndex ?? 0, 0, 0xff),
    hopLimit: integerInRange('a hop limit', vector.hopLimit ?? 64, 0, 0xff),
    trafficClass: integerInRange('a traffic class', vector.trafficClass ?? 0, 0, 0xff),
    flowLabel: integerInRange('a flow label', vector.flowLabel ?? 0, 0, 0xfffff),
  }
}

/** Where datagrams go (ibv_ah). */
export class AddressHandle extends Resource {
  readonly description = 'address handle'

  /** @internal made by {@link ProtectionDomain.createAddressHandle} */
  constructor(protectionDomain: ProtectionDomain, vector: AddressVector) {
    const prepared = nativeAddressVector(vector)
    super(
      calling(protectionDomain.description, () => native.createAh(protectionDomain.handle, prepared)),
      [protectionDomain],
    )
  }
}
