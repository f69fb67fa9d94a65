# SPDX-License-Identifier: Apache-2.0
"""A volume driver that stores nothing, so that Cinder needs no disks: the hypervisor is a fake."""

from cinder.volume import driver


class Noop(driver.VolumeDriver):
    def check_for_setup_error(self):
        pass

    def _update_volume_stats(self):
        self._stats = {"volume_backend_name": "noop", "vendor_name": "noop", "driver_version": "1", "storage_protocol": "noop",
                       "total_capacity_gb": 100_000, "free_capacity_gb": 100_000, "reserved_percentage": 0}

    def create_volume(self, volume):
        pass

    def clone_image(self, context, volume, image_location, image_meta, image_service):
        return {}, True  # without this, the image would be read

    def delete_volume(self, volume):
        pass

    def ensure_export(self, context, volume):
        pass

    def create_export(self, context, volume, connector):
        pass

    def remove_export(self, context, volume):
        pass

    def initialize_connection(self, volume, connector):
        return {"driver_volume_type": "noop", "data": {}}

    def terminate_connection(self, volume, connector, **kwargs):
        pass
